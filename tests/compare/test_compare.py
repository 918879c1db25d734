"""`python -m pmapdp.compare`: a real comparison, its table, its report and its page,
which Chromium shows.
"""

import contextlib
import html
import io
import json
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import look
import numpy as np
import optax
import port_example
import pytest
from launch import CALLERS, python
from markupsafe import escape
from rich.filesize import decimal

from pmapdp.compare import __main__ as command
from pmapdp.compare import programs, strategies
from pmapdp.compare.page import load_data, make_page
from pmapdp.compare.words import conclude, find_unequal, shorten_hlo, summary
from pmapdp.config import Config
from pmapdp.errors import FailedError

EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = ["--model=mlp", "--optimizer=momentum", "--learning-rate=0.05", "--steps=10"]


def compare(folder, *arguments, unequal=""):
    """Run the command in this process. The runs called `unequal` fail it.

    Returns its printed lines, report and page.
    """
    context = pytest.MonkeyPatch()
    printed = io.StringIO()
    for module in (strategies, programs):  # pytest's own process has devices enough
        context.setattr(
            module, "in_new_process", lambda function, *values: function(*values)
        )
    reports = []

    def keep_report(report):
        reports.append(report)
        return make_page(report)

    context.setattr(command, "make_page", keep_report)
    files = ["--json", folder / "report.json", "--html", folder / "page.html"]
    # The page shows the line that an all-reduce comes from, which a program compiled
    # elsewhere doesn't have.
    settings = (CALLERS.lower(), "jax_compilation_cache_include_metadata_in_key")
    for name in settings:
        jax.config.update(name, True)
    result = contextlib.nullcontext()
    if unequal:
        result = pytest.raises(FailedError, match=f"^not proven equal: {unequal}$")
    with contextlib.redirect_stdout(printed), result:
        command.main([str(argument) for argument in (*arguments, *files)])
    for name in settings:
        jax.config.update(name, False)
    context.undo()
    (report,) = reports
    written = json.loads((folder / "report.json").read_text())
    assert written == json.loads(json.dumps(asdict(report)))
    return printed.getvalue().splitlines(), report, (folder / "page.html").read_text()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    flags = ["--devices=2", "--strategies", "pmap", "jit"]
    return compare(tmp_path_factory.mktemp("compare"), *JOB, *flags)


@pytest.fixture(scope="module")
def all_strategies(tmp_path_factory):
    """The page with all four columns."""
    return compare(tmp_path_factory.mktemp("all"), *JOB, "--devices=2")[2]


def test_every_run_is_reported_and_equals_a_single_device(compared):
    _, report, _ = compared
    names = [(run.strategy, run.devices) for run in report.runs]
    assert names == [("single", 1), ("pmap", 2), ("jit", 2)]
    single, *others = report.runs
    assert (single.collectives, single.largest_difference) == ([], 0)
    for run in report.runs:
        assert len(run.losses) == 10
        assert 0 < run.step_ms.low <= run.step_ms.median <= run.step_ms.high
    for run in others:
        assert 0 < run.largest_difference < 1e-5
    assert "All end with the same parameters" in conclude(report)


@pytest.mark.parametrize(
    ("difference", "verdict"),
    [
        (0.1, "by rounding or by a mistake: --dtype float64 tells which."),
        (np.nan, "which is more than rounding."),
    ],
)
def test_a_run_that_differs_is_named(compared, difference, verdict):
    _, report, _ = compared
    run = replace(report.runs[1], largest_difference=difference)
    runs = [report.runs[0], run]
    text = conclude(replace(report, runs=runs))
    assert text.startswith("pmap × 2: the parameters differ from a single device's")
    assert text.endswith(verdict)
    assert find_unequal(runs) == ["pmap × 2"]  # which gives exit status 1
    assert find_unequal(report.runs) == []


def test_only_float64_calls_a_difference_more_than_rounding(compared):
    _, report, _ = compared
    first = replace(report.runs[0], dtype="float64")
    run = replace(report.runs[1], dtype="float64", largest_difference=1e-8)
    text = conclude(replace(report, runs=[first, run]))
    assert text.endswith("by up to 1e-08, which is more than rounding.")


@pytest.mark.nightly
def test_rounding_that_adam_enlarges_is_not_called_a_mistake(tmp_path):
    """In float32 the mlp may end farther away than 1e-2, and in float64 it doesn't."""
    flags = ["--model", "mlp", "--devices=2", "--steps=20", "--strategies", "jit"]
    _, report, _ = compare(tmp_path, *flags)
    assert "more than rounding" not in conclude(report)
    _, report, _ = compare(tmp_path, *flags, "--dtype=float64")
    assert conclude(report).startswith("All end with the same parameters")


@pytest.mark.slow
def test_float32_parameters_may_differ_by_float32s_rounding(tmp_path):
    """A model that takes no `param_dtype` keeps them, also with --dtype float64."""
    (tmp_path / "net.py").write_text(
        "from flax import nnx\n\n\n"
        "def net(*, dtype, rngs):\n"
        "    return nnx.Sequential(lambda x: x.reshape(-1, 784) / 255,\n"
        "                          nnx.Linear(784, 10, dtype=dtype, rngs=rngs))\n"
    )
    flags = [f"--model={tmp_path}/net.py:net", "--dtype=float64", "--strategies=jit"]
    _, report, _ = compare(tmp_path, *flags, "--devices=2", "--steps=20")
    assert report.runs[1].largest_difference > 1e-9
    assert conclude(report).startswith("All end with the same parameters")


def test_the_largest_difference_of_two_trees():
    difference = strategies.largest_difference
    infinite = np.array([np.inf, 1])
    assert difference(infinite, np.array([np.inf, 3])) == 2
    with_nan = [np.ones(1), np.array([np.nan])]
    assert np.isnan(difference([np.ones(1), np.ones(1)], with_nan))


def test_what_each_sees_holds_and_who_adds_up(compared):
    single, pmap, jit = compared[1].runs
    assert [run.sees[0] for run in (single, pmap, jit)] == [64, 32, 64]
    parameters = 669_706  # of the mlp, in float32; momentum has as many numbers
    for run in (single, pmap, jit):
        assert run.holds["weights"].shape == [784, 512]
        assert run.holds["weights"].bytes == 4 * parameters
        assert run.holds["optimizer"].bytes == 4 * parameters + 4  # and a count
    assert pmap.holds["batch"].shape == [2, 32, 28, 28, 1]
    assert jit.holds["batch"].bytes == single.holds["batch"].bytes / 2
    assert jit.holds["batch"].split
    assert not jit.holds["weights"].split
    (yours,) = pmap.collectives
    line = "gradients, count = lax.pmean((gradients, sums.count), AXIS)"
    assert yours.text == line
    assert yours.kind == "all-reduce"
    assert yours.bytes >= 4 * parameters
    assert yours.written
    (added,) = jit.collectives
    assert "dot_general" in added.operations  # whose sum over the batch it is
    assert added.source.startswith("models/mlp.py:")
    assert not added.written


def test_the_devices_sums_in_the_pictures_add_up_to_a_single_device_s(compared):
    _, report, page = compared
    single, pmap, jit = report.runs
    (total,) = single.gradient_sums
    assert len(pmap.gradient_sums) == 2
    assert len({round(number, 3) for number in (*pmap.gradient_sums, total)}) == 3
    for run in (pmap, jit):
        assert sum(run.gradient_sums) == pytest.approx(total, rel=1e-4)
    text = f"{total:.2f}".replace("-", "\u2212")
    mean = f"{total / 64:.2g}".replace("-", "\u2212")
    assert f">{text}</text>" in page
    plain = re.sub("</?tspan.*?>", "", page)
    for words in ("you add up", "the compiler adds up"):
        assert f"{words}: Σ = {text}<" in plain
    assert page.count(f"÷ 64 examples = {mean}<") == 3
    assert f"({text} / 2) / (64 / 2) = {mean}" in page  # what pmean makes of it
    assert f"{text} / 64 = {mean}<" in page


def test_the_page_says_what_several_devices_save_and_what_they_don_t(compared):
    """In numbers of this run, and nothing of it if no device waits for another."""
    _, report, page = compared
    pmap = report.runs[1]
    size = decimal(pmap.collectives[0].bytes)
    words = [
        "With 2 devices, each sums the gradients of 32 examples in place of 64",
        f"waits for the all-reduce of {size}",
    ]
    alone = [replace(run, devices=1, collectives=[]) for run in report.runs]
    page_of_one = make_page(replace(report, runs=alone))
    for text in words:
        assert text in " ".join(page.split())
        assert text not in " ".join(page_of_one.split())


def test_the_page_explains_pmean_where_the_code_has_psum(compared):
    """That's below the programs to copy, and not under the mistakes."""
    page = " ".join(compared[2].split())
    pmean = page.index("asks for it: <code>gradients, count = lax.pmean(")
    explained = page.index("which is a <code>psum</code>")
    assert pmean < explained < page.index("<summary>What ran as single")


def test_the_page_says_which_file_ran_and_which_of_its_lines_adds_up(compared):
    """The columns of code are other programs, so the line is shown as it is there."""
    _, report, page = compared
    _, pmap, _ = report.runs
    place, text = pmap.collectives[0].source, pmap.collectives[0].text
    file, _, number = place.rpartition(":")
    lines = (Path(command.__file__).parents[1] / file).read_text().splitlines()
    assert lines[int(number) - 1].strip() == text
    shown = " ".join(page.split())
    assert f"pmapdp/{place} asks for it: <code>{escape(text)}</code>" in shown
    for strategy in ("single", "pmap", "jit"):
        file = f"pmapdp/steps/{strategy}.py"
        took = f'The run above took <span data-file="{file}">{file}</span>'
        assert shown.count(took) == 1
    assert shown.count(">steps/pmap.py:") == 0


def test_the_compiled_line_says_who_asked_for_the_all_reduce(compared):
    """A psum is yours. Under jit there's none, but a gradient, which is a sum."""
    _, report, page = compared
    _, pmap, jit = report.runs
    origins = {}
    for run in (pmap, jit):
        line = shorten_hlo(run.collectives[0])
        assert escape(line) in page.replace("<wbr>", "")
        origins[run.strategy] = line.partition("op_name=")[2]
    assert "psum" in origins["pmap"]
    assert "shard_map" in origins["pmap"]  # on which pmap is built
    assert "pmap is built on it today" in " ".join(page.split())
    assert "psum" not in origins["jit"]
    assert "transpose(jvp" in origins["jit"]


@pytest.mark.slow
def test_temporary_arrays_hold_gradients_twice(all_strategies):
    """The page says so, with these numbers."""

    def measure(name, devices, batch):
        config = Config(
            strategy=name, devices=devices, global_batch_size=batch, dtype="float64"
        )
        with jax.enable_x64(True):
            training = strategies.Training(config, name)
        plan = training.program.memory_analysis()
        return plan.temp_size_in_bytes, training.holds["weights"].bytes

    whole_batch, weights = measure("single", 1, 64)
    eight_examples, _ = measure("jit", 8, 64)
    one_example, _ = measure("jit", 8, 8)
    assert one_example > 1.9 * weights
    assert eight_examples < 1.02 * one_example
    for size in (weights, whole_batch, eight_examples, one_example):
        assert f"{size / 1e6:.1f} MB" in all_strategies


def test_adam_makes_a_step_of_a_rounding_error():
    """Of two gradients that differ by a rounding error as large as themselves."""
    rate = 0.01
    for optimizer, smallest, largest in (
        (optax.adam(rate), rate, 2 * rate),
        (optax.sgd(rate), 0, 1e-8),
    ):
        state = optimizer.init(jnp.zeros(1))
        steps = [optimizer.update(jnp.array([g]), state)[0] for g in (-1e-7, 1e-7)]
        assert smallest < abs(steps[0] - steps[1]) < largest


def test_the_two_wrong_programs_leave_the_curve(compared):
    """Without Adam, a sum over 2 devices is twice the gradient, which the loss
    shows.
    """
    _, report, page = compared
    single = np.array(report.runs[0].losses)
    names = [run.strategy for run in report.wrong]
    assert names == ["a forgotten average", "a sum in place of the mean"]
    for run in report.runs:
        assert np.abs(np.array(run.losses) / single - 1).max() < 1e-5
    for run in report.wrong:
        difference = np.abs(np.array(run.losses) / single - 1)
        assert difference[0] < 1e-5  # the first loss comes from the initial weights
        assert difference.max() > 1e-4
        assert run.strategy in page


@pytest.mark.parametrize(
    ("flags", "wrong"), [([], 0), (["--html=p.html"], 2), (["--json=r.json"], 2)]
)
def test_the_wrong_programs_run_only_for_a_page_or_a_report(monkeypatch, flags, wrong):
    """The terminal shows neither, so it doesn't compile them."""
    trained = []

    def compare_names(config, names, counts):
        trained.extend(names)
        return []

    monkeypatch.setattr(command, "compare_strategies", compare_names)
    monkeypatch.setattr(command, "print_comparison", lambda comparison: None)
    monkeypatch.setattr(command, "make_page", lambda comparison: "")
    monkeypatch.setattr(command, "write_file", lambda file, text: None)
    command.main([*JOB, *flags])
    assert trained[:3] == ["pmap", "shard_map", "jit"]
    assert len(trained[3:]) == wrong
    assert set(trained[3:]) <= set(strategies.WRONG_STRATEGIES)


def test_the_text_is_short_and_ends_with_the_full_path(compared):
    lines, _, _ = compared
    assert len(lines) <= 20
    assert max(map(len, lines[:-1])) <= 80  # the last one has a path
    for words in ("jit × 2", "the compiler", "you, pmap.py:", "ms an update"):
        assert words in "\n".join(lines)
    starts = [line.startswith("All end with") for line in lines]
    conclusion = starts.index(True)
    assert lines[conclusion - 1] == ""  # right below the table
    assert lines[conclusion].endswith(".")  # the number isn't wrapped
    assert re.match(r"Open /\S+/page.html in a browser", lines[-1])


def test_the_page_is_whole_and_needs_no_network_and_no_script(compared):
    _, _, text = compared
    assert len(text) < 1_000_000
    assert not {"script", "link", "iframe", "img"} & set(re.findall(r"<(\w+)", text))
    assert not re.search(r"@import|url\(|\{[{%#]", text)
    for tag in ("div", "section", "figure", "p", "ul", "li", "small", "code"):
        assert len(re.findall(f"<{tag}[ >]", text)) == text.count(f"</{tag}>"), tag
    links = re.findall(r'(?:src|href|srcset)="([^"]*)"', text)
    assert links
    ids = re.findall(r' id="([^"]*)"', text)
    assert {link.removeprefix("#") for link in links} <= set(ids)
    pictures = re.findall("<svg[^>]*>", text)
    labels = re.findall(r'role="img" aria-label="(\w[^"]*)"', text)
    assert len(set(labels)) == len(pictures)  # each says something of its own
    words = " ".join(text.split())
    assert "Why the results are equal" in words
    assert "9 mistakes that raise no error" in words
    assert "so the compiler adds an all-reduce" in words


def test_the_page_escapes_what_it_shows(compared):
    _, report, _ = compared
    single, pmap, jit = report.runs
    collective = replace(pmap.collectives[0], text="<b>& gone")
    columns = report.code.sections[""] | {"jit": ["<i>x"]}
    hostile = replace(
        report,
        config=replace(report.config, dataset="<script>alert(1)</script>"),
        runs=[single, replace(pmap, collectives=[collective]), jit],
        code=replace(report.code, sections={"": columns}),
    )
    page = make_page(hostile)
    for words in ("<script>alert", "<b>& gone", "<i>x"):
        assert words not in page


@pytest.fixture
def chromium():
    if look.CHROMIUM is None:
        assert not os.environ.get("PMAPDP_REQUIRE_CHROMIUM"), (
            "PMAPDP_REQUIRE_CHROMIUM is set and there is no Chromium"
        )
        pytest.skip("no Chromium here: apt-get install chromium")


NARROW = """<title>begun</title>
<iframe id="frame" src="page.html" style="width:WIDTHpx;height:800px"></iframe><script>
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument;
  const places = selector => [...page.querySelectorAll(selector)].map(
    element => element.getBoundingClientRect()
  ).filter(place => place.width).map(place => [place.left, place.top]);
  const names = [...page.querySelectorAll(".answer .row:last-child .cell > .name")];
  document.title = JSON.stringify({
    cells: places(".answer .row:last-child .cell"),
    columns: places(".column"),
    names: names.filter(name => name.offsetWidth).map(name => name.innerText),
  });
}, 100);
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [999, 690, 600])
def test_a_narrow_page_shows_all_columns_two_beside_each_other(
    all_strategies, tmp_path, chromium, width
):
    """So what is green in a column of code has its reference on the same page."""
    (tmp_path / "page.html").write_text(all_strategies)
    found = look.run_page(tmp_path, NARROW.replace("WIDTH", str(width)))
    assert found["names"] == ["single", "pmap", "shard_map", "jit"]
    for kind in ("cells", "columns"):
        single, pmap, shard_map, jit = found[kind]
        assert single[1] == pmap[1] < shard_map[1] == jit[1]
        assert single[0] == shard_map[0] < pmap[0] == jit[0]


PHONE = """<title>begun</title>
<iframe id="frame" src="page.html" style="width:400px;height:800px"></iframe><script>
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument;
  const row = page.querySelector(".answer .row:last-child");
  const names = [...row.querySelectorAll(".cell > .name")];
  const shown = names.filter(name => name.getBoundingClientRect().width);
  const lists = [...page.querySelectorAll(".on-phone")];
  const places = [...page.querySelectorAll(".column")].map(
    column => column.getBoundingClientRect()
  );
  document.title = JSON.stringify({
    names: shown.map(name => name.innerText),
    lefts: new Set(shown.map(name => name.getBoundingClientRect().left)).size,
    code: [new Set(places.map(place => place.top)).size, places[0].width],
    lines: lists.map(list => list.innerText.trim().split(/\\s*\\n\\s*/)),
    pictures: [...page.querySelectorAll(".pictures svg")].map(
      picture => Math.round(picture.getBoundingClientRect().top)
    ),
  });
}, 100);
</script>"""


@pytest.mark.slow
def test_a_phone_shows_two_columns_beside_each_other(compared, tmp_path, chromium):
    """The programs are in one row, below their lines of the all-reduce."""
    (tmp_path / "page.html").write_text(compared[2])
    found = look.run_page(tmp_path, PHONE)
    assert found["names"] == ["single", "pmap", "jit"]
    assert found["lefts"] == 2
    single, pmap, jit = found["pictures"]
    assert single == pmap < jit
    rows, width = found["code"]
    assert rows == 1
    assert 300 < width < 360  # so that the next program is seen at the edge
    line = 'grads = lax.psum(grads, "data")'
    single = ["single", "# no all-reduce"]
    jit = ["jit", "# the compiler adds the all-reduce"]
    assert found["lines"] == [[*single, "pmap", line, *jit]]


NUMBERS = """<title>begun</title>
<iframe id="frame" src="page.html" style="width:400px;height:800px"></iframe><script>
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument, found = [];
  let numbers = 0;
  for (const picture of page.querySelectorAll(".update svg")) {
    const boxes = [...picture.querySelectorAll(".number")].map(text => text.getBBox());
    numbers = Math.max(numbers, boxes.length);
    const wide = boxes.filter(box => box.width > 240 / boxes.length - 2);
    if (wide.length) found.push("numbers cross the edges of their boxes");
    boxes.forEach((box, place) => {
      const digits = 0.75 * box.height;  // which have nothing below the line
      const next = boxes.slice(place + 1).filter(
        other => Math.abs(other.y - box.y) < digits && other.x < box.x + box.width
      );
      if (next.length) found.push("numbers collide");
    });
    for (const bar of picture.querySelectorAll(".all-reduce")) {
      const text = bar.nextElementSibling;
      if (!text || text.tagName != "text") continue;
      if (text.getBBox().width > bar.getBBox().width) found.push(text.textContent);
    }
  }
  document.title = JSON.stringify({numbers, found});
}, 100);
</script>"""


@pytest.mark.slow
def test_on_a_phone_numbers_stand_apart_and_texts_within_their_bars(
    compared, tmp_path, chromium
):
    """With the sums of eight devices, five of them negative."""
    _, report, _ = compared
    single, pmap, jit = report.runs
    sums = [-2.1, -1.21, 0.54, -0.88, 1.07, -0.95, -1.02, 0.22]
    total = replace(single, gradient_sums=[sum(sums)])
    runs = [replace(run, devices=8, gradient_sums=sums) for run in (pmap, jit)]
    (tmp_path / "page.html").write_text(make_page(replace(report, runs=[total, *runs])))
    assert look.run_page(tmp_path, NUMBERS) == {"numbers": 8, "found": []}


WRAPS = """<title>begun</title>
<iframe id="frame" src="page.html" style="width:WIDTHpx;height:800px"></iframe><script>
frame.onload = () => setTimeout(() => {
  const page = frame.contentDocument;
  const lines = [...page.querySelectorAll(".column .cell .line")];
  const height = Math.min(...lines.map(line => line.offsetHeight));
  const wrapped = lines.filter(line => line.offsetHeight > 1.5 * height);
  document.title = JSON.stringify(wrapped.map(line => line.innerText));
}, 100);
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 1279, 1024, 690, 400])
def test_no_line_of_the_code_wraps(all_strategies, tmp_path, chromium, width):
    (tmp_path / "page.html").write_text(all_strategies)
    assert look.run_page(tmp_path, WRAPS.replace("WIDTH", str(width))) == []


COPY = """<title>begun</title>
<iframe id="frame" src="page.html" style="width:1280px;height:800px"></iframe><script>
frame.onload = () => setTimeout(() => {
  const columns = [...frame.contentDocument.querySelectorAll(".column")];
  document.title = JSON.stringify(columns.map(column => {
    const cells = column.querySelectorAll(".cell:not(.compiled)");
    const selection = frame.contentWindow.getSelection();
    selection.setBaseAndExtent(cells[0], 0, cells[cells.length - 1], 1);
    return selection.toString();
  }));
}, 100);
</script>"""


@pytest.mark.slow
def test_a_column_of_code_is_selected_alone(compared, tmp_path, chromium):
    """Its rows are as high as its neighbours', and it's copied as its program."""
    (tmp_path / "page.html").write_text(compared[2])
    to_copy = load_data("to_copy.toml")
    programs = [to_copy[name].strip() for name in compared[1].columns]
    assert look.run_page(tmp_path, COPY) == programs


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 760, 400])
def test_nothing_sticks_out_of_the_page(compared, tmp_path, width, chromium):
    (tmp_path / "page.html").write_text(compared[2])
    (tmp_path / "wide.html").write_text('<div style="width:3000px">wide</div>')
    (found,) = look.too_wide(tmp_path, width)
    assert found.startswith(f"wide.html at {width} pixels")


@pytest.mark.nightly
def test_a_batch_per_device_is_that_of_the_most_devices(tmp_path):
    """The recipe has one. Digits are there without a download."""
    job = ["mirrored", "--dataset=digits", "--model=mlp", "--steps=10"]
    _, report, _ = compare(tmp_path, *job, "--strategies=jit", "--devices", 1, 2)
    sizes = [(run.devices, run.global_batch_size) for run in report.runs]
    assert sizes == [(1, 128), (2, 128), (1, 128)]
    assert "2 simulated CPU devices" in summary(report)
    assert "seed" not in summary(report)  # which no flag of the command sets


@pytest.mark.slow
def test_your_programs_are_verified_and_set_beside_the_first(tmp_path):
    example = port_example.__file__
    targets = [f"{example}:old", f"{example}:new", f"{EXAMPLES}/sum_of_means.py:check"]
    wrong = "sum_of_means.py:check × 8"
    lines, report, page = compare(tmp_path, *targets, unequal=wrong)
    old, new, wrong = report.runs
    assert [run.name for run in report.runs] == [
        "port_example.py:old × 8",
        "port_example.py:new × 8",
        "sum_of_means.py:check × 8",
    ]
    assert [run.verdict for run in report.runs] == ["equal", "equal", "FAILED"]
    assert wrong.report.splitlines()[0] in lines
    assert old.largest_difference == 0
    assert new.largest_difference < 1e-12  # one update of Adam, in float64
    assert wrong.largest_difference is None  # it starts from another state
    gradients_and_loss = 4 * (20 * 32 + 32 * 3 + 1)
    for run in (old, new):
        assert sum(row.bytes for row in run.collectives) == gradients_and_loss
    assert old.holds["state"].shape == [8, 20, 32]
    assert new.holds["state"].shape == [20, 32]
    assert "sum_of_means.py:check FAILED" in "\n".join(lines)
    assert "sum_of_means.py:check FAILED" in page
    names = "port_example.py:old and port_example.py:new and sum_of_means.py:check"
    assert f"<h1>{names}, side by side</h1>" in page
    assert "the change is 8 times the reference's" in wrong.report
    assert wrong.report in html.unescape(page)
    # What a phone shows above the code
    above = re.search(r'<div class="on-phone">(.*?)<div class="grid code"', page, re.S)
    shown = " ".join(html.unescape(re.sub("<[^>]*>", "", above[1])).split())
    assert "port_example.py:old value, gradients = lax.pmean((value, grad" in shown
    assert "port_example.py:new # the compiler adds the all-reduce" in shown


RATES = """
import jax
import numpy as np
from jax import lax

from pmapdp.verify import one_device

X = np.arange(32, dtype=np.float32).reshape(16, 2)


def make_program(rate, **others):
    def step(w, x):
        return w - rate * lax.pmean(jax.grad(lambda w: (x @ w).mean())(w), "data")

    return {
        "step": jax.pmap(step, "data"),
        "reference": one_device(step, "data"),
        "state": np.ones(2, np.float32),
        "batch": X,
    } | others


def old():
    return make_program(0.1)


def new():
    return make_program(0.2)


def in_a_function():
    step = make_program(0.1)["step"]
    return make_program(0.1, step=lambda w, x: step(w, x))


def raises():
    def step(w, x):
        raise ValueError("out of range")

    return make_program(0.1, step=jax.pmap(step, "data"))
"""


@pytest.mark.slow
def test_two_programs_that_equal_their_references_may_differ(tmp_path):
    """Another learning rate moves the weights by that much more of the gradient, which
    is the mean of the inputs: 15 and 16.
    """
    file = tmp_path / "rates.py"
    file.write_text(RATES)
    targets = [f"{file}:old", f"{file}:in_a_function", f"{file}:new"]
    lines, report, _ = compare(tmp_path, *targets, unequal="rates.py:new × 8")
    assert [run.verdict for run in report.runs] == ["equal"] * 3
    _, same, differs = report.runs
    assert same.largest_difference == 0
    assert differs.largest_difference == pytest.approx((0.2 - 0.1) * 16, abs=1e-12)
    text = " ".join(" ".join(lines).split())
    assert "the states of rates.py:old and rates.py:in_a_function are equal." in text
    assert "differ by 1.6, which is more than rounding." in text


@pytest.mark.nightly
def test_a_program_that_raises_gives_status_1_and_says_where(tmp_path):
    file = tmp_path / "rates.py"
    file.write_text(RATES)
    done = python("-m", "pmapdp.compare", f"{file}:old", f"{file}:raises")
    assert (done.returncode, done.stdout) == (1, "")
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"error: {file}:raises fails: it raises an error, ")
    assert message.endswith(" in step: ValueError: out of range")


@pytest.mark.slow
def test_a_program_s_examples_are_counted_along_its_batch_axis():
    file = Path(__file__).parents[1] / "verify" / "test_right_programs.py"
    run, _, _ = programs.run_program(f"{file}:three_updates_in_a_scan", 2)
    assert run.global_batch_size == 16


NOISY = """
import jax
import numpy as np
from jax import lax

from pmapdp.verify import old_program


def step(w, x, key):
    x = x + 0.1 * jax.random.normal(key, x.shape)
    return w - 0.1 * lax.pmean(jax.grad(lambda w: ((x * w) ** 2).mean())(w), "data")


def check():
    return {
        "step": jax.pmap(step, "data"),
        "reference": old_program(step, "data", groups=2),
        "state": np.ones(3),
        "batch": np.arange(12.0).reshape(4, 3),
        "key": lambda update: jax.random.split(jax.random.key(update), 2),
        "per_device": ["key"],
        "layout": "stacked",
    }
"""


@pytest.mark.slow
def test_a_program_may_take_a_key_for_each_device(tmp_path):
    file = tmp_path / "noisy.py"
    file.write_text(NOISY)
    run, start, end = programs.run_program(f"{file}:check", 2)
    assert run.verdict == "equal"
    assert end.shape == start.shape == (3,)
    assert np.all(end < start)


KEY_IN_THE_STATE = """
import jax
import numpy as np


@jax.jit
def step(state, x):
    key, used = jax.random.split(state["key"])
    x = x + 0.1 * jax.random.normal(used, x.shape)
    gradient = jax.grad(lambda w: ((x * w) ** 2).mean())(state["w"])
    return {"w": state["w"] - 0.1 * gradient, "key": key}


def check():
    return {
        "step": step,
        "reference": step,
        "state": {"w": np.ones(3), "key": jax.random.key(0)},
        "batch": np.arange(12.0).reshape(4, 3),
        "layout": "sharded",
    }
"""


@pytest.mark.slow
def test_a_state_may_hold_a_key(tmp_path):
    """It's compared as its numbers."""
    file = tmp_path / "keyed.py"
    file.write_text(KEY_IN_THE_STATE)
    _, start, end = programs.run_program(f"{file}:check", 2)
    key = jax.random.key_data(jax.random.split(jax.random.key(0))[0])
    np.testing.assert_array_equal(end["key"], key)
    assert start["w"].dtype == end["w"].dtype == np.float64
    assert strategies.largest_difference(end, end) == 0


@pytest.mark.nightly
def test_what_fails_in_a_process_is_one_sentence():
    flags = [*JOB, "--devices=2", "--learning-rate=1e30"]
    done = python("-m", "pmapdp.compare", *flags)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines()[-1].startswith("error: the loss is ")
