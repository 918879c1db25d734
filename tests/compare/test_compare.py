"""`python -m pmapdp.compare`: a real comparison, its table, its report and its page, which Chromium shows."""

import html
import html.parser
import json
import os
import re
import shutil
import subprocess

import pytest
from launch import python
from marks import quick

from pmapdp.compare.page import make_page
from pmapdp.compare.words import conclude
from pmapdp.lessons.programs import port_example

JOB = ["--model", "mlp", "--optimizer", "momentum", "--learning-rate", "0.05", "--steps", "10"]
RUNS = [("single", 1), ("pmap", 2), ("pmap, stacked", 2), ("jit", 2)]


def run(folder, *arguments):
    files = ["--json", folder / "report.json", "--html", folder / "page.html"]
    done = python("-m", "pmapdp.compare", *arguments, *files)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "report.json").read_text()), (folder / "page.html").read_text()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    return run(tmp_path_factory.mktemp("compare"), *JOB, "--devices", "2", "--strategies", "pmap", "jit")


@pytest.mark.slow
def test_every_run_is_reported_and_equals_a_single_device(compared):
    _, report, _ = compared
    assert [(each["strategy"], each["devices"]) for each in report["runs"]] == RUNS
    single, *others = report["runs"]
    assert (single["collectives"], single["largest_difference"]) == ([], 0)
    for each in report["runs"]:
        assert len(each["losses"]) == 10
        assert 0 < each["step_ms"]["low"] <= each["step_ms"]["median"] <= each["step_ms"]["high"]
        assert {phase for _, phase, _, _ in each["timeline"]} >= {"forward", "backward", "update"}
        assert {device for device, *_ in each["timeline"]} == set(range(each["devices"]))
    for each in others:
        assert 0 < each["largest_difference"] < 1e-5
        assert each["losses"] == pytest.approx(single["losses"], rel=1e-4)
        assert "all-reduce" in {phase for _, phase, _, _ in each["timeline"]}
    assert "All 4 end with the same parameters" in conclude(report)
    report["runs"][1]["largest_difference"] = 0.1
    assert conclude(report).startswith("pmap × 2: the parameters aren't those of a single device")
    report["runs"][1]["largest_difference"] = 1e-7


@pytest.mark.slow
def test_what_each_sees_holds_and_who_adds_up(compared):
    _, report, _ = compared
    runs = {each["strategy"]: each for each in report["runs"]}
    assert {name: each["sees"][0] for name, each in runs.items()} == {
        "single": 64,
        "pmap": 32,
        "pmap, stacked": 32,
        "jit": 64,
    }
    shapes = {name: each["holds"]["state"]["shape"] for name, each in runs.items()}
    assert shapes == {"single": [784, 512], "pmap": [784, 512], "pmap, stacked": [2, 784, 512], "jit": [784, 512]}
    assert runs["pmap"]["holds"]["batch"]["shape"] == [2, 32, 28, 28, 1]
    assert runs["jit"]["holds"]["batch"]["on_device"] == [32, 28, 28, 1]
    assert (runs["jit"]["holds"]["batch"]["split"], runs["jit"]["holds"]["state"]["split"]) == (True, False)
    for name in ("pmap", "pmap, stacked"):
        (found,) = runs[name]["collectives"]
        assert found["text"] == "gradients, count = lax.pmean((gradients, sums.count), AXIS)"
        assert found["instruction"].startswith("all-reduce(")
        assert found["bytes"] >= 669_706 * 4
    (found,) = runs["jit"]["collectives"]
    assert "dot_general" in found["operations"]  # whose sum over the batch it is
    assert found["source"].startswith("models/mlp.py:")


@pytest.mark.slow
def test_seven_mistakes_are_off_and_their_right_lines_are_not(compared):
    _, report, _ = compared
    assert len(report["pitfalls"]) == 7
    for case in report["pitfalls"]:
        for kind, results in case["results"].items():
            for found in results.values():
                assert (max(found["loss"], found["gradient"]) > 0.01) == (kind == "wrong"), case["name"]
                assert found["agree"] == (kind != "wrong" or "metric" not in case["name"])
    vma = report["pitfalls"][0]["results"]
    assert list(vma["wrong"]) == ["shard_map"]
    assert vma["wrong"]["shard_map"]["factor"] == pytest.approx(8)


@pytest.mark.slow
def test_the_text_is_short_and_ends_with_the_full_path(compared):
    out, _, _ = compared
    lines = out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines[:-1])) <= 100  # the last one has a path
    words = ("pmap, stacked × 2", "jit × 2", "the compiler", "you, pmap.py:", "gradient × 8", "nobody has to")
    assert [each for each in words if each not in out] == []
    assert re.match(r"Open /\S+/page.html in a browser", lines[-1])


class Tags(html.parser.HTMLParser):
    """The nesting of a page's tags; fails if one is closed that isn't open."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.slow
def test_the_page_is_whole_and_needs_no_network_and_no_script(compared):
    _, report, text = compared
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert len(text) < 1_000_000
    assert not {"script", "link", "iframe", "img"} & {tag for tag, _ in tags.seen}
    assert not re.search(r"@import|url\(|\$[a-z]", text)
    names = {attributes["id"] for _, attributes in tags.seen if "id" in attributes}
    for tag, attributes in tags.seen:
        assert not any((attributes.get(name) or "").startswith(("http", "//")) for name in ("src", "href", "srcset"))
        assert attributes.get("href", "#code").removeprefix("#") in names
        assert tag != "svg" or (attributes["role"] == "img" and attributes["aria-label"])
    for words in (
        "Why the results are equal",
        "Seven mistakes that raise no error",
        "because a sum of yours runs over the split axis",
    ):
        assert words in " ".join(text.split())
    hostile = json.loads(json.dumps(report))
    hostile["config"]["dataset"] = "<script>alert(1)</script>"
    hostile["runs"][1]["collectives"][0]["text"] = "<b>& gone"
    hostile["code"][0]["lines"]["jit"] = ["<i>x"]
    page = make_page(hostile)
    assert "<script>alert" not in page
    assert "<b>& gone" not in page
    assert "<i>x" not in page


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Writes into the title, which --dump-dom shows: the widths of the page and of what sticks out of it, the brightness of
# its ground, and where the cells of a row begin.
PROBE = """<script>addEventListener("load", () => {
  const wide = document.documentElement.clientWidth, out = [];
  for (const e of document.querySelectorAll("body *"))
    if (!e.closest("code, svg") && e.getBoundingClientRect().right > wide + 1) out.push(e.tagName + "." + e.className);
  const lefts = [...document.querySelectorAll(".answer .cell")].map(e => Math.round(e.getBoundingClientRect().left));
  const cells = lefts.slice(0, 3);
  const ground = getComputedStyle(document.body).backgroundColor;
  document.title = JSON.stringify({wide, scroll: document.documentElement.scrollWidth, out, ground, cells});
});</script>"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "scheme", "columns"),
    [(1280, "light", 3), (1100, "dark", 3), (760, "light", 2), (600, "dark", 2), (400, "light", 1)],
)
def test_columns_fit_the_width(compared, tmp_path, width, scheme, columns):
    if CHROMIUM is None:
        assert not os.environ.get("PMAPDP_REQUIRE_CHROMIUM"), "PMAPDP_REQUIRE_CHROMIUM is set and there is no Chromium"
        pytest.skip("no Chromium here: apt-get install chromium")
    # A headless window has a least width of its own; a frame of the wanted width has not.
    inner, outer = tmp_path / "page.html", tmp_path / "frame.html"
    inner.write_text(compared[2].replace("</head>", PROBE + "</head>"))
    outer.write_text(
        f'<iframe id=f src="page.html" style="width:{width}px;height:3000px;border:0" '
        'onload="setTimeout(() => document.title = f.contentDocument.title, 300)"></iframe>'
    )
    options = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync --hide-scrollbars "
    options += "--disable-background-networking --disable-component-update --allow-file-access-from-files "
    options += "--window-size=2000,3000 --virtual-time-budget=5000"
    options += f" --user-data-dir={tmp_path / 'profile'} --blink-settings=preferredColorScheme={int(scheme == 'light')}"
    command = [CHROMIUM, *options.split(), "--dump-dom", outer.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = json.loads(html.unescape(re.findall(r"<title>(.*?)</title>", done.stdout)[0]))
    assert (found["wide"], found["out"]) == (width, [])
    assert found["scroll"] <= width
    brightness = sum(map(int, re.findall(r"\d+", found["ground"])[:3])) / 3
    assert brightness < 80 if scheme == "dark" else brightness > 200
    assert len(set(found["cells"])) == columns  # single, pmap and jit


@pytest.mark.slow
def test_a_batch_per_device_is_that_of_the_most_devices(tmp_path):
    """Of a recipe that has one, which here is no more than a model and a data set that are there without a download."""
    job = ["mirrored", "--dataset", "digits", "--model", "mlp", "--steps", "10", "--strategies", "jit"]
    done = python("-m", "pmapdp.compare", *job, "--devices", "1", "2", "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert [(run["devices"], run["global_batch_size"]) for run in runs] == [(1, 128), (2, 128), (1, 128)]


WRONG = """
import jax
from jax import lax
from pmapdp.verify import one_device
from pmapdp.lessons.programs.port_example import loss, optimizer, start
import optax


def summed_step(state, batch):
    params, moments = state
    value, gradients = jax.value_and_grad(loss)(params, batch)
    gradients = lax.psum(gradients, "batch")
    updates, moments = optimizer.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), {"loss": lax.pmean(value, "batch")}


def program():
    step = jax.pmap(summed_step, axis_name="batch", in_axes=(None, 0), out_axes=None)
    return start() | {"step": step, "reference": one_device(summed_step, "batch"), "layout": "replicated"}
"""


@pytest.mark.slow
def test_your_programs_are_verified_and_set_beside_the_first(tmp_path):
    (tmp_path / "wrong.py").write_text(WRONG)
    programs = [f"{port_example.__file__}:old", f"{port_example.__file__}:new", tmp_path / "wrong.py:program"]
    out, report, page = run(tmp_path, *programs, "--devices", "2")
    old, new, wrong = report["runs"]
    assert [each["name"] for each in report["runs"]] == [
        "port_example.py:old × 2",
        "port_example.py:new × 2",
        "wrong.py:program × 2",
    ]
    assert [each["verdict"] for each in report["runs"]] == ["equal", "equal", "FAILED"]
    assert wrong["causes"] == ["sum for mean"]
    assert old["largest_difference"] == 0
    assert new["largest_difference"] < 1e-6  # one update of Adam, in float32
    assert wrong["largest_difference"] > 1e-3  # its first moment is twice as large
    for each in report["runs"]:
        assert sum(found["bytes"] for found in each["collectives"]) == 4 * (20 * 32 + 32 * 3 + 1)  # gradients and loss
    assert [each["holds"]["state"]["shape"] for each in report["runs"]] == [[2, 20, 32], [20, 32], [20, 32]]
    assert "value, gradients = lax.pmean((value, gradients), 'batch')" in "\n".join(
        report["code"][0]["lines"][str(programs[0])]
    )
    for text in (out, page):
        assert "wrong.py:program × 2: FAILED" in text
    assert "use lax.pmean in place of lax.psum" in " ".join(out.split())


@pytest.mark.slow
def test_what_fails_is_one_sentence(tmp_path):
    (tmp_path / "a.py").write_text("def program():\n    return 1 / 0\n")
    done = python("-m", "pmapdp.compare", f"{tmp_path}/a.py:program", f"{port_example.__file__}:new", "--devices", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "ZeroDivisionError: division by zero" in done.stderr.splitlines()[-1]
    done = python("-m", "pmapdp.compare", *JOB, "--devices", "2", "--strategies", "jit", "--learning-rate", "1e30")
    assert (done.returncode, done.stdout) == (3, "")
    assert re.fullmatch(r"error: the loss is (nan|inf) at step \d+: try a lower --learning-rate.*\n", done.stderr)


@quick(
    2,
    ("arguments", "words"),
    [
        (["--strategies", "pmpa"], "did you mean 'pmap'"),
        (["old.py:program"], "old.py:program alone has nothing to be compared with"),
        (["--devices", "8", "0"], "try --devices 8"),
        (["--html", "/proc/nowhere/page.html"], "/proc/nowhere/page.html cannot be written"),
        (["--global-batch-size", "5000"], "the training set of digits has 1437"),
        (["--steps", "5"], "5 updates are too few to time"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, words):
    done = python("-m", "pmapdp.compare", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr.splitlines()[-1]
