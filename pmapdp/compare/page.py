"""Write a comparison as one HTML file that needs no network and no script. Its frame and style are `page.html`."""

from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from rich.filesize import decimal

from pmapdp.compare import words
from pmapdp.compare.code import as_html, as_rows
from pmapdp.compare.pictures import bars, boxes, timeline
from pmapdp.compare.pitfalls import verdict
from pmapdp.compare.strategies import STACKED

Run = dict[str, Any]


def make_page(report: dict[str, Any]) -> str:
    """Make the page of a report."""
    runs: dict[str, Run] = {}
    for run in report["runs"]:  # those of the most devices come first
        runs.setdefault(run["strategy"], run)
    forms = [report["columns"]]
    if STACKED in runs:  # in the place of the other form of pmap, by a switch
        forms.append([STACKED if name == "pmap" else name for name in report["columns"]])
    template = Template(resources.files("pmapdp.compare").joinpath("page.html").read_text(encoding="utf-8"))
    every, ours = report["runs"], report["config"] is not None
    sizes = [sum(each["bytes"] for each in run["collectives"]) for run in every]
    return template.substitute(
        kind="ours" if ours else "yours",
        title="One training step, four ways" if ours else "Your steps, side by side",
        summary=escape(words.summary(report)),
        conclusion=escape(words.conclude(report)),
        columns=len(report["columns"]),
        answer=in_each_form(forms, lambda names: answer([runs[name] for name in names])),
        timelines=timelines([run for run in runs.values() if run.get("timeline")]),
        code="".join(code_section(section, forms, runs) for section in report["code"]),
        shared="".join(shared_lines(part) for part in report["shared"]),
        pitfalls="".join(pitfall(case) for case in report["pitfalls"]),
        times=bars([(run["name"], {"": run["step_ms"]["median"]}, words.time(run), run["step_ms"]) for run in every]),
        explain_times=escape(words.explain_times(every)),
        memories=bars([(run["name"], run["memory"], words.memory(run), {}) for run in every]),
        explain_memory=escape(words.explain_memory(every)),
        exchanges=bars([
            (run["name"], {"all-reduce": size}, words.exchanged(run["collectives"]), {})
            for run, size in zip(every, sizes, strict=True)
        ]),
    )  # fmt: skip


def in_each_form(forms: Sequence[Sequence[str]], draw: Callable[[Sequence[str]], str]) -> str:
    """Draw with each form of pmap; the switch of the page shows one of the two."""
    kinds = ("replicated", "stacked") if len(forms) > 1 else ("",)
    return "".join(f'<div class="{kind}">{draw(names)}</div>' for kind, names in zip(kinds, forms, strict=True))


def label(run: Run) -> str:
    """Name a run at the head of its column."""
    return escape(run["name"].partition(" \u00d7")[0])


def cells_of(contents: Sequence[str], runs: Sequence[Run]) -> str:
    """Lay out a cell for each run; on a narrow page it bears the run's name."""
    pairs = zip(contents, runs, strict=True)
    return "".join(f'<div class="cell" data-name="{label(run)}">{content}</div>' for content, run in pairs)


def answer(runs: Sequence[Run]) -> str:
    """Draw the first screen: what each run is given, sees, adds up and holds, and what comes out."""
    several = "devices" if max(run["devices"] for run in runs) > 1 else "device"
    heads = [
        f"{label(run)}<small>{run['devices']} {several if run['devices'] > 1 else 'device'}</small>" for run in runs
    ]
    questions = {
        "You pass": [given(run) for run in runs],
        "Your function sees": [sees(run) for run in runs],
        "Who adds up": [who_adds_up(run) for run in runs],
        "Each device holds": [boxes(run) for run in runs],
        f"After {len(runs[0]['losses'])} updates" if "losses" in runs[0] else "Result": [outcome(run) for run in runs],
    }
    html = '<div class="corner"></div>' + "".join(f'<div class="head">{head}</div>' for head in heads)
    for question, contents in questions.items():
        if any(contents):
            html += f'<div class="question">{question}</div>{cells_of(contents, runs)}'
    return f'<div class="grid answer">{html}</div>'


def given(run: Run) -> str:
    """Show the batch as the program passes it."""
    batch = run["holds"].get("batch")
    if not batch:
        return "no batch"
    N = run["devices"]
    has_axis = batch["shape"][0] == N != run["global_batch_size"]
    how = "the batch" if N == 1 else f"the batch, cut in {N}" if has_axis else "the batch, its rows split"
    return f"{how if batch['split'] or N == 1 else 'the whole batch'}<br><b>{batch['shape']}</b>"


def sees(run: Run) -> str:
    """Say how many examples the function sees: b or B."""
    if "sees" not in run:
        return ""
    count, N = run["sees"][0], run["devices"]
    is_whole = count == run["global_batch_size"]
    times = "" if N == 1 else ", once" if is_whole else f", on each of {N} devices"
    return f"<b>{run['sees']}</b><small>{'B' if is_whole else 'b = B / N'} = {count} examples{times}</small>"


def who_adds_up(run: Run) -> str:
    """Show the line that asks for the all-reduce, or that the compiler adds it."""
    found = words.largest_collective(run)
    if found is None:
        return words.who_adds_up(run)
    size = f"{found['arrays']} array{'s' * (found['arrays'] > 1)}, {decimal(found['bytes'])}"
    source, text = escape(found["source"]), escape(found["text"])
    if words.is_written(found):
        return f"{as_html([found['text']])}<small>you, in {source}: {size}</small>"
    line = f", as in {source}, <q>{text}</q>" if source else ""
    return (
        f'<code class="dashed">{escape(found["kind"])}</code><small>the compiler, because a sum of yours runs over the '
        f"split axis{line}. It's in no line of yours: {size}</small>"
    )


def outcome(run: Run) -> str:
    """Show the loss, and how far the parameters are from the first column's."""
    far = run["largest_difference"]
    note = "" if far == 0 else f"parameters differ by {far:.1e}" if far is not None else "it starts from another state"
    return f"{'loss ' * ('losses' in run)}<b>{escape(words.result(run))}</b><small>{note}</small>"


def timelines(runs: Sequence[Run]) -> str:
    """Draw one update of each run on the same time axis."""
    longest = max((end for run in runs for *_, end in run["timeline"]), default=1.0)
    html = ""
    for run in runs:
        found = words.largest_collective(run)
        by_compiler = found is not None and not words.is_written(found)
        drawing = timeline(run["timeline"], run["devices"], longest, by_compiler)
        who = "no all-reduce" if found is None else "the all-reduce isn't in your code" if by_compiler else "you add up"
        html += f'<figure class="time"><figcaption><b>{escape(run["name"])}</b>: {who}</figcaption>{drawing}</figure>'
    return html


def code_section(section: dict[str, Any], forms: Sequence[Sequence[str]], runs: dict[str, Run]) -> str:
    """Set the lines of one part of the programs beside each other, and below the step what was compiled."""

    def draw(names: Sequence[str]) -> str:
        columns = [runs[name] for name in names]
        labels = {name: label(runs[name]) for name in names}
        html = "".join(f'<div class="head">{name}</div>' for name in labels.values())
        html += as_rows({name: section["lines"][name] for name in names}, labels)
        if section["title"] == "The step":
            html += (
                f'<div class="all">In the compiled program:</div>{cells_of(list(map(compiled_line, columns)), columns)}'
            )
        return f'<div class="grid code">{html}</div>'

    return f"<h3>{escape(section['title'])}</h3><p>{escape(section['why'])}</p>{in_each_form(forms, draw)}"


def compiled_line(run: Run) -> str:
    """Show the instruction that exchanges most, and the line of source that it comes from."""
    found = words.largest_collective(run)
    if found is None:
        return '<span class="none">no collective</span>'
    kind = "reduce" if words.is_written(found) else "dashed"
    source = f"<small>from {escape(found['source'])}</small>" if found["source"] else ""
    return f'<code><div class="line {kind}" style="--i:0">{escape(found["instruction"])}</div></code>{source}'


def shared_lines(part: dict[str, Any]) -> str:
    """Fold lines that are the same in all columns."""
    return f"<details><summary>{escape(part['title'])}</summary>{as_html(part['lines'], plain=True)}</details>"


def pitfall(case: dict[str, Any]) -> str:
    """Show a mistake beside one device's lines and the right ones, with how far each result is off."""
    columns = {"one_device": "one device, and jit", "wrong": "wrong", "right": "right"}
    html = "".join(f'<div class="head">{title}</div>' for title in columns.values())
    for kind, title in columns.items():
        said = ""
        for name, each in case["results"][kind].items():
            found = verdict(each)
            said += f'<li>{name}: <b class="{"equal" if found == "equal" else "off"}">{found}</b></li>'
        sums = {words.exchanged(each["collectives"]) for each in case["results"][kind].values()}
        lines = as_html(case[kind].strip().splitlines(), plain=True)
        said += f"<li>verify calls it: {escape(case['cause'])}</li>" * (kind == "wrong")
        why = f"<p>{escape(case.get(f'why_{kind}', ''))}</p><ul>{said}<li>{' or '.join(sorted(sums))}</li></ul>"
        html += f'<div class="cell" data-name="{title}">{lines}{why}</div>'
    return f'<h3>{escape(case["name"])}</h3><div class="grid pitfall">{html}</div>'
