"""`python -m pmapdp.compare`: a real comparison, its table, its report and its page, which Chromium shows."""

import html
import html.parser
import itertools
import json
import os
import re
import shutil
import subprocess

import pytest
from launch import python

from pmapdp.compare.page import page
from pmapdp.compare.table import verified

pytestmark = pytest.mark.slow

JOB = ["--model", "mlp", "--optimizer", "momentum", "--learning-rate", "0.05", "--steps", "12"]
WAYS = [("single", 1), ("pmap", 2), ("pmap, stacked", 2), ("jit", 2)]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    files = ["--json", folder / "report.json", "--html", folder / "page.html"]
    done = python("-m", "pmapdp.compare", *JOB, "--devices", "2", "--strategies", "pmap", "jit", *files)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "report.json").read_text()), (folder / "page.html").read_text()


class Tags(html.parser.HTMLParser):
    """The nesting of a page's tags; fails where one is closed that is not open."""

    VOID = frozenset({"meta", "br", "link", "hr", "img", "input"})

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_way_is_reported(compared):
    _, report, _ = compared
    assert [(run["strategy"], run["devices"]) for run in report["runs"]] == WAYS
    for run in report["runs"]:
        assert len(run["losses"]) == 12
        assert run["examples_per_second"] > 0
        assert 0 < run["step_ms"]["low"] <= run["step_ms"]["median"] <= run["step_ms"]["high"]


def test_results_are_those_of_a_single_device(compared):
    _, report, _ = compared
    single, *others = report["runs"]
    for run in others:
        assert 0 < run["largest_difference"] < 1e-5
        assert run["losses"] == pytest.approx(single["losses"], rel=1e-4)
        assert run["causes"] == []
    assert single["collectives"] == []
    assert single["largest_difference"] == 0


def test_the_compiled_collectives_stand_beside_the_line_that_asks(compared):
    _, report, _ = compared
    asked = {run["strategy"]: run["collectives"] for run in report["runs"][1:]}
    for (found,) in asked.values():
        assert (found["kind"], found["bytes"] >= 669_706 * 4) == ("all-reduce", True)
    for way in ("pmap", "pmap, stacked"):
        assert asked[way][0]["operations"] == ["psum"]
        assert asked[way][0]["text"] == "gradients, count = lax.pmean((gradients, sums.count), AXIS)"
    assert asked["pmap"][0]["source"].startswith("steps/pmap.py:")
    assert "dot_general" in asked["jit"][0]["operations"]  # whose sum over the batch it is
    assert asked["jit"][0]["source"].startswith("models/mlp.py:")
    (row,) = [row for row in report["rows"] if row["role"] == "the all-reduce"]
    assert "out_shardings=replicated" in "".join(piece for line in row["cells"]["jit"] for piece, _ in line)
    assert row["cells"]["single"] == []


def test_what_devices_hold_is_read_from_the_arrays(compared):
    _, report, _ = compared
    held = {run["strategy"]: run["held"] for run in report["runs"]}
    state = {way: found["state"]["largest"] for way, found in held.items()}
    assert {way: found["shape"] for way, found in state.items()} == {
        "single": [784, 512], "pmap": [784, 512], "pmap, stacked": [2, 784, 512], "jit": [784, 512]
    }  # fmt: skip
    assert state["jit"]["parts"] == [[0, 1], [0, 1]]
    assert state["pmap, stacked"]["parts"] == [[0, 0.5], [0.5, 1]]
    assert held["pmap"]["state"]["bytes"] == held["pmap, stacked"]["state"]["bytes"] == held["single"]["state"]["bytes"]
    assert held["pmap"]["batch"]["largest"]["shape"] == [2, 32, 28, 28, 1]
    assert held["jit"]["batch"]["largest"]["on_device"] == [32, 28, 28, 1]
    assert held["pmap, stacked"]["metric"]["largest"]["shape"] == [2]
    assert [found["saved"]["largest"]["shape"] for found in held.values()] == [[784, 512]] * 4


def test_the_source_of_each_role_stands_beside_that_of_the_others(compared):
    _, report, _ = compared
    rows = {row["role"]: row["cells"] for row in report["rows"]}

    def lines(role, way, marked=None):
        pieces = [[piece for piece, mark in line if marked is None or mark] for line in rows[role][way]]
        return "\n".join("".join(line) for line in pieces if line)

    assert list(rows) == [
        "place the state", "place a batch", "the step", "the all-reduce", "the wrapper", "read a metric", "save"
    ]  # fmt: skip
    for way in ("single", "jit"):  # the step of jit is that of a single device
        assert lines("the step", way) == lines("the step", "single")
        assert lines("the step", way, marked=True) == ""
    assert "lax.pmean" in lines("the step", "pmap", marked=True)
    assert "jax.pmap" in lines("the wrapper", "pmap")
    assert "np.stack([x] * N)" in lines("place the state", "pmap, stacked", marked=True)
    for cells in rows.values():
        text = "".join(piece for way in cells.values() for line in way for piece, _ in line)
        assert not re.search(r'#|"""|->|: Batch', text)


def test_the_table_fits_a_hundred_columns(compared):
    out, report, _ = compared
    assert max(map(len, out.splitlines())) <= 100
    for words in (
        "pmap, stacked × 2", "jit × 2", "examples/s", "all-reduce of", "[784, 512] by P(): all of it on a device",
        "[784, 512] on one device", "synchronized moments", "gradient × 8",
        "pmapdp.verify finds that each step equals that of a single device.",
        "Simulated devices share the cores", "in a browser",
    ):  # fmt: skip
        assert words in " ".join(out.split())
    (role,) = [row for row in report["rows"] if row["role"] == "place a batch"]
    assert role["why"] in " ".join(out.split())


PARTING = {
    "averaged": {"pmap": "equal", "shard_map": "equal"},
    "local moments": {"pmap": "off", "shard_map": "off"},
    "synchronized moments": {"pmap": "equal", "shard_map": "equal"},
    "one key": {"pmap": "off", "shard_map": "off"},
    "folded key": {"pmap": "off", "shard_map": "off"},
    "key of the example": {"pmap": "equal", "shard_map": "equal"},
    "averaged in each": {"pmap": "equal", "shard_map": "equal"},
    "averaged once": {"pmap": "equal", "shard_map": "equal"},
    "clipped before the average": {"pmap": "off", "shard_map": "off"},
    "clipped after the average": {"pmap": "equal", "shard_map": "equal"},
    "mean of means": {"pmap": "off", "shard_map": "off"},
    "sum over count": {"pmap": "equal", "shard_map": "equal"},
    "metric not averaged": {"pmap": "off", "shard_map": "off"},
}


def test_where_the_ways_part(compared):
    _, report, _ = compared
    found = {}
    for case in report["parting"]:
        assert max(case["results"]["jit"][what] for what in ("loss", "gradient")) < 1e-12
        for program in case["programs"]:
            results = {
                way: "equal" if max(result["loss"], result["gradient"]) < 1e-12 else "off"
                for way, result in program["results"].items()
            }
            if "check_vma" in case["name"]:  # the gradient is N times too long
                assert program["results"]["shard_map"]["gradient"] == pytest.approx(7)
            else:
                found[program["name"]] = results
    assert found == PARTING
    by_name = {program["name"]: program["results"]["pmap"] for case in report["parting"] for program in case["programs"]
               if "pmap" in program["results"]}  # fmt: skip
    assert by_name["metric not averaged"]["gradient"] < 1e-12
    assert [name for name, result in by_name.items() if not result["agree"]] == ["metric not averaged"]
    exchanged = {name: sum(each["bytes"] for each in result["collectives"]) for name, result in by_name.items()}
    assert exchanged["averaged in each"] == 2 * exchanged["averaged once"]


def test_page_is_whole_and_needs_no_network_and_no_script(compared):
    _, _, text = compared
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert len(text) < 1_000_000
    names = {tag for tag, _ in tags.seen}
    assert not names & {"script", "link", "iframe", "img"}
    for _, attributes in tags.seen:
        for name in ("src", "href", "srcset"):
            assert not (attributes.get(name) or "#").startswith(("http", "//"))
    assert not re.search(r"@import|url\(|\$[a-z]", text)
    pictures = [attributes for tag, attributes in tags.seen if tag == "svg"]
    assert pictures
    assert all(each["role"] == "img" and each["aria-label"] for each in pictures)
    marks = {attributes["id"] for _, attributes in tags.seen if "id" in attributes}
    for tag, attributes in tags.seen:
        assert attributes.get("href", "#ways").removeprefix("#") in marks
        if tag == "table":
            assert attributes["aria-labelledby"] in marks
    heads = [attributes for tag, attributes in tags.seen if tag == "th"]
    assert all(attributes.get("scope") for attributes in heads)
    levels = [int(tag[1]) for tag, _ in tags.seen if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))


def test_a_step_that_verify_finds_wrong_is_named(compared):
    _, report, _ = compared
    single, first, *others = report["runs"]
    assert verified([single, first | {"causes": ["sum for mean"]}, *others]) == (
        "pmapdp.verify finds pmap \u00d7 2: sum for mean."
    )
    ending = "On one device nothing was split: try --devices 8 (beside a single GPU with JAX_PLATFORMS=cpu)."
    assert verified([single, first | {"devices": 1}]).endswith(ending)
    assert not verified(report["runs"]).endswith(ending)


def test_page_escapes_what_it_shows(compared):
    _, report, _ = compared
    hostile = json.loads(json.dumps(report))
    hostile["config"]["dataset"] = "<script>alert(1)</script>"
    hostile["runs"][1]["collectives"][0]["kind"] = "<b>& gone"
    hostile["rows"][0]["cells"]["jit"] = [[["<i>", True]]]
    text = page(hostile)
    assert "<script>alert" not in text
    assert "<b>& gone" not in text
    assert "<i>" not in text.replace('<i style="background', "")
    assert "&lt;b&gt;&amp; gone" in text


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Writes into the title, which --dump-dom shows: the widths of the page and of whatever sticks out of it, the brightness
# of its ground, and from where to where the cells of the first row of sources reach.
PROBE = """<script>addEventListener("load", () => {
  const wide = document.documentElement.clientWidth, out = [];
  for (const e of document.querySelectorAll("body *")) {
    if (e.closest("thead") && wide <= 700) continue; // folded: for screen readers alone
    if (e.getBoundingClientRect().right > wide + 1) out.push(e.tagName + "." + e.getAttribute("class"));
  }
  const cells = [...document.querySelector("tbody").querySelectorAll("tr:nth-child(2) td")].map(e => {
    const box = e.getBoundingClientRect(); return [Math.round(box.left), Math.round(box.right)]; });
  const ground = getComputedStyle(document.body).backgroundColor;
  document.title = JSON.stringify({wide, scroll: document.documentElement.scrollWidth, out, ground, cells});
});</script>"""


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (400, "dark"), (1920, "dark"), (1280, "dark"), (400, "light")]
)
def test_every_column_is_visible(compared, tmp_path, width, scheme):
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
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    options += ["--hide-scrollbars"]
    options += ["--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=2000,3000", "--virtual-time-budget=5000"]
    options += [f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"]
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", outer.as_uri()], capture_output=True, text=True, timeout=120
    )
    found = json.loads(html.unescape(re.findall(r"<title>(.*?)</title>", done.stdout)[0]))
    assert found["wide"] == width
    assert found["scroll"] <= width
    assert found["out"] == []
    brightness = sum(map(int, re.findall(r"\d+", found["ground"])[:3])) / 3
    assert brightness < 80 if scheme == "dark" else brightness > 200
    cells = found["cells"]
    assert len(cells) == 3  # single, pmap and jit
    if width > 700:  # beside each other, each as wide as the others
        assert all(left == right for (_, left), (right, _) in itertools.pairwise(cells))
        assert min(right - left for left, right in cells) > 0.3 * width
    else:  # below each other
        assert {left for left, _ in cells} == {cells[0][0]}
        assert min(right - left for left, right in cells) > 0.9 * width


@pytest.mark.slow
def test_a_batch_per_device_is_that_of_the_most_devices(tmp_path):
    """Of a recipe that has one, which here is no more than a model and a data set that are there without a download."""
    job = ["mirrored", "--dataset", "digits", "--model", "mlp", "--steps", "3", "--strategies", "jit"]
    done = python("-m", "pmapdp.compare", *job, "--devices", "1", "2", "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert [(run["devices"], run["global_batch_size"]) for run in runs] == [(1, 128), (2, 128), (1, 128)]


def test_a_run_that_fails_is_no_success():
    done = python("-m", "pmapdp.compare", *JOB, "--devices", "2", "--strategies", "jit", "--learning-rate", "1e30")
    assert done.returncode == 3
    assert done.stdout == ""
    assert re.fullmatch(r"error: the loss is (nan|inf) at step \d+: try a lower --learning-rate, .*\n", done.stderr)
