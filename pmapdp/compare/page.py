"""The comparison as one HTML file that needs nothing beside itself. The text around the results is in `page.html`."""

from html import escape
from importlib import resources
from string import Template
from typing import Any

from pmapdp.colours import STRATEGY_COLOURS
from pmapdp.compare.charts import Bar, bars, batch_rows, key, loss_curves
from pmapdp.compare.sources import side_by_side, source
from pmapdp.compare.svg import element
from pmapdp.compare.table import milliseconds, run_name, size, table_rows


def page(report: dict[str, Any]) -> str:
    """The page of a report (see `compare`), as HTML."""
    runs = report["runs"]
    done = [run for run in runs if not run["error"]]
    template = Template(resources.files("pmapdp.compare").joinpath("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        colours_light=colours(0),
        colours_dark=colours(1),
        recipe=escape(report["config"]["recipe"]),
        facts=facts(report),
        failures="".join(
            element("p", escape(f"{run_name(run)} failed: {run['error']}"), class_="failure")
            for run in runs
            if run["error"]
        ),
        simulated=SIMULATED if report["job"]["machine"]["simulated"] else "",
        losses=losses(runs) if done else "<p>No run has finished.</p>",
        speed=speed(done),
        memory=memory(done),
        table=table(runs),
        sharding="".join(sharding(number, run) for number, run in enumerate(done)),
        sources="".join(
            side_by_side(source("pmap"), source(other), ("steps/pmap.py", f"steps/{other}.py"))
            for other in ("jit", "shard_map")
        ),
    )


SIMULATED = (
    "<p>The devices are simulated on one CPU and share its cores. They show that the results are equal; how fast as "
    "many real devices would be, they cannot show.</p>"
)


def colours(scheme: int) -> str:
    """The style rules that give each strategy its colour on a light (0) or dark (1) page."""
    return " ".join(f"--{strategy}: {pair[scheme]};" for strategy, pair in STRATEGY_COLOURS.items())


def facts(report: dict[str, Any]) -> str:
    """What was run, as a list of terms."""
    config, job = report["config"], report["job"]
    machine = job["machine"]
    entries = {
        "Model": f"{config['model']}, {config['dtype']}",
        "Data": f"{config['dataset']}, {job['training_examples']:,} examples to train",
        "Updates": f"{job['steps']:,} in each run, {job['global_batch_size']:,} examples in each",
        "Optimizer": f"{config['optimizer']}, learning rate {config['learning_rate']:g}",
        "Seed": str(config["seed"]),
        "Machine": f"{machine['devices']}, {machine['system']}",
        "Software": f"jax {machine['jax']}, Python {machine['python']}",
    }
    return "".join(element("div", element("dt", name), element("dd", escape(value))) for name, value in entries.items())


def losses(runs: list[dict[str, Any]]) -> str:
    """The loss curves and their key."""
    return element("div", loss_curves(runs), class_="plot") + element("p", "update", class_="axis") + key(runs)


def panel(title: str, note: str, picture: str) -> str:
    """A small picture under its heading."""
    return element(
        "div", element("h3", escape(title)), element("p", escape(note), class_="note"), picture, class_="panel"
    )


def speed(runs: list[dict[str, Any]]) -> str:
    """Bars for examples/s, step time and the wait before the first step."""
    timed = [run for run in runs if run["step_ms"]]
    waits = [
        Bar(run, [(run["first_step_seconds"], run["strategy"])], f"{run['first_step_seconds']:.2f} s") for run in runs
    ]
    panels = ""
    if timed:
        speeds = [
            Bar(run, [(run["images_per_second"], run["strategy"])], f"{run['images_per_second']:,.0f}") for run in timed
        ]
        times = [
            Bar(
                run,
                [(run["step_ms"]["median"], run["strategy"])],
                milliseconds(run["step_ms"]),
                (run["step_ms"]["low"], run["step_ms"]["high"]),
            )
            for run in timed
        ]
        panels += panel("Examples per second", "Longer is better.", bars("examples", "Examples per second", speeds))
        panels += panel(
            "Time of a step",
            "Shorter is better; the mark spans the middle half.",
            bars("steps", "Time of a step", times),
        )
    if waits:
        panels += panel(
            "Time to the first step",
            "Shorter is better; most of it compiles.",
            bars("first", "Time to the first step", waits),
        )
    return panels


def memory(runs: list[dict[str, Any]]) -> str:
    """Bars for the bytes on one device."""
    entries = [
        Bar(
            run,
            [(run["parameter_bytes"], run["strategy"]), (run["optimizer_bytes"], f"{run['strategy']} second")],
            f"{size(run['parameter_bytes'])} + {size(run['optimizer_bytes'])}",
        )
        for run in runs
    ]
    if not entries:
        return ""
    title = "Memory on one device"
    return panel(title, "Parameters (dark) and optimizer state (pale).", bars("memory", title, entries))


def table(runs: list[dict[str, Any]]) -> str:
    """The table of all figures."""
    head = "".join(element("th", escape(run_name(run)), scope="col") for run in runs)
    body = "".join(
        element(
            "tr",
            element("th", escape(row.name), element("small", escape(row.meaning)), scope="row"),
            *(element("td", escape(cell)) for cell in row.cells),
        )
        for row in table_rows(runs)
    )
    caption = element("caption", "All figures, one column a run")
    return f"<table>{caption}<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"


def sharding(number: int, run: dict[str, Any]) -> str:
    """How a batch lies on the devices of a run."""
    batch = run["batch"]
    whole, one = ([str(length) for length in batch[name]] for name in ("shape", "shard_shape"))
    note = f"{batch['sharding']}; inputs [{', '.join(whole)}], of which one device holds [{', '.join(one)}]"
    if batch["padding"]:
        note += f"; {len(batch['padding'])} rows are padding (pale)"
    return panel(run_name(run), note, batch_rows(f"batch{number}", run))
