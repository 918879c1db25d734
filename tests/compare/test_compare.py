"""`python -m pmapdp.compare`: a real comparison, its report, and its page."""

import html.parser
import json
import re

import pytest
from launch import python
from marks import quick

from pmapdp.compare.page import page, source
from pmapdp.compare.table import verified

JOB = ["--model", "mlp", "--optimizer", "momentum", "--learning-rate", "0.05", "--steps", "12"]


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    files = ["--json", folder / "report.json", "--html", folder / "page.html"]
    done = python("-m", "pmapdp.compare", *JOB, "--devices", "2", "4", "--strategies", "pmap", "jit", *files)
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


def test_every_run_is_reported(compared):
    _, report, _ = compared
    assert [(run["strategy"], run["devices"]) for run in report["runs"]] == [
        ("pmap", 4),
        ("jit", 4),
        ("pmap", 2),
        ("jit", 2),
        ("single", 1),
    ]
    for run in report["runs"]:
        assert len(run["losses"]) == 12
        assert run["examples_per_second"] > 0
        assert 0 < run["step_ms"]["low"] <= run["step_ms"]["median"] <= run["step_ms"]["high"]


def test_results_are_those_of_a_single_device(compared):
    _, report, _ = compared
    *others, single = report["runs"]
    for run in others:
        assert 0 < run["largest_difference"] < 1e-5
        assert run["losses"] == pytest.approx(single["losses"], rel=1e-4)
        (collective,) = run["collectives"]
        assert (collective["kind"], collective["count"]) == ("all-reduce", 1)
        assert collective["bytes"] >= 669_706 * 4
        assert run["causes"] == []
    assert single["collectives"] == []
    assert single["largest_difference"] == 0


def test_table(compared):
    out, _, _ = compared
    for name in (
        "single",
        "pmap × 4",
        "jit × 2",
        "examples/s",
        "1 all-reduce",
        "pmapdp.verify finds that each step equals that of a single device.",
        "Simulated devices share the cores",
        "in a browser",
    ):
        assert name in out


def test_page_is_whole_and_needs_no_network(compared):
    _, _, text = compared
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    for _, attributes in tags.seen:
        for name in ("src", "href", "srcset"):
            assert not (attributes.get(name) or "#").startswith(("http", "//"))
    assert not re.search(r"@import|url\(\s*['\"]?http", text)
    assert "$" not in re.sub(r"<td nowrap.*?</td>", "", text, flags=re.DOTALL)  # no placeholder is left
    pictures = [attributes for tag, attributes in tags.seen if tag == "img"]
    assert all(each["alt"] and each["src"].startswith("data:image/svg+xml;base64,") for each in pictures)
    assert len(pictures) == 1
    columns = [attributes for tag, attributes in tags.seen if tag == "th" and "scope" in attributes]
    rows = re.findall(r"<tr>((?:<td>[^<]*</td>)+)</tr>", text)
    assert [row.count("<td>") for row in rows] == [len(columns)] * 5
    assert "steps/pmap.py" in text
    assert "steps/shard_map.py" in text


def test_page_shows_the_real_sources(compared):
    _, _, text = compared
    cells = "\n".join(re.findall(r'<td nowrap="nowrap">(.*?)</td>', text, flags=re.DOTALL))
    plain = html.unescape(re.sub(r"<[^>]*>", "", cells)).replace("\N{NO-BREAK SPACE}", " ")
    for strategy in ("pmap", "jit", "shard_map"):
        for line in source(strategy).splitlines():
            assert line in plain


def test_a_step_that_verify_finds_wrong_is_named(compared):
    _, report, _ = compared
    runs = [report["runs"][0] | {"causes": ["sum for mean"]}, *report["runs"][1:]]
    assert verified(runs) == "pmapdp.verify finds pmap \u00d7 4: sum for mean."


def test_page_escapes_what_it_shows(compared):
    _, report, _ = compared
    hostile = json.loads(json.dumps(report))
    hostile["config"]["dataset"] = "<script>alert(1)</script>"
    hostile["runs"][0]["collectives"][0]["kind"] = "<b>& gone"
    text = page(hostile)
    assert "<script>alert" not in text
    assert "<b>& gone" not in text
    assert "&lt;b&gt;&amp; gone" in text


@pytest.mark.slow
def test_a_batch_per_device_is_that_of_the_most_devices(tmp_path):
    """Of a recipe that has one, which here is no more than a model and a data set that are there without a download."""
    job = ["mirrored", "--dataset", "digits", "--model", "mlp", "--steps", "3", "--strategies", "jit"]
    done = python("-m", "pmapdp.compare", *job, "--devices", "1", "2", "--json", tmp_path / "report.json")
    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "report.json").read_text())["runs"]
    assert [(run["devices"], run["global_batch_size"]) for run in runs] == [(2, 128), (1, 128), (1, 128)]


@pytest.mark.slow
def test_a_run_that_fails_is_no_success():
    done = python("-m", "pmapdp.compare", *JOB, "--devices", "2", "--strategies", "jit", "--learning-rate", "1e30")
    assert done.returncode == 3
    assert done.stdout == ""
    assert re.fullmatch(r"error: the loss is (nan|inf) at step \d+: try a lower --learning-rate, .*\n", done.stderr)


@quick(
    4,
    ("arguments", "words"),
    [
        (["--strategies", "pmpa"], "did you mean 'pmap'"),
        (["--steps", "0"], "try --steps 100"),
        (["--devices", "8", "0"], "try --devices 8"),
        (["--device-counts", "8"], "did you mean '--devices'"),
        (["--html", "/proc/nowhere/page.html"], "/proc/nowhere/page.html cannot be written"),
        (["--model", "cnm"], "did you mean 'cnn'"),
        (["digts"], "did you mean 'digits'"),
        (["--global-batch-size", "5000"], "the training set of digits has 1437"),
        (["--steps", "1"], "a single update is too few to time"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, words):
    done = python("-m", "pmapdp.compare", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
