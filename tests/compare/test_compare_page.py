"""The page of a comparison in headless Chromium: nothing overflows, at 1280 and at 400 pixels, light and dark."""

import os
import re
import shutil
import subprocess

import pytest
from marks import quick

from pmapdp.compare.page import page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# Writes the widths of the page and of whatever sticks out of it into the title, which --dump-dom shows.
PROBE = """<script>addEventListener("load", () => {
  const wide = document.documentElement.clientWidth, out = [];
  for (const e of document.querySelectorAll("body *")) {
    let box = e.getBoundingClientRect(), inside = e;
    while ((inside = inside.parentElement)) if (/auto|scroll|hidden/.test(getComputedStyle(inside).overflowX)) break;
    if (!inside && box.right > wide + 1) out.push(e.tagName + "." + e.getAttribute("class"));
  }
  const ground = getComputedStyle(document.body).backgroundColor;
  document.title = `wide=${wide} scroll=${document.documentElement.scrollWidth} out=${out} ground=${ground}`;
});</script>"""


def run(strategy: str, count: int) -> dict:
    return {
        "strategy": strategy,
        "devices": count,
        "global_batch_size": 64,
        "machine": "8 simulated CPU devices on 2 cores, jax 0.10.2, Python 3.11.7",
        "losses": [2.3, 1.1, 0.7],
        "step_ms": {"median": 19.1, "low": 18.6, "high": 19.7},
        "examples_per_second": 3358.0,
        "collectives": [{"kind": "all-reduce", "count": 1, "bytes": 1_388_596}] if count > 1 else [],
        "largest_difference": 1.9e-5,
        "causes": [],
    }


@pytest.fixture(scope="module")
def report() -> dict:
    config = {"recipe": "digits", "model": "cnn", "dataset": "digits", "dtype": "float32", "seed": 0}
    config |= {"optimizer": "adam", "learning_rate": 0.005}
    return {"config": config, "runs": [*(run(s, 8) for s in ("pmap", "jit", "shard_map")), run("single", 1)]}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@quick(1, "width", [400, 1280])
def test_nothing_overflows(report, tmp_path, width, scheme):
    if CHROMIUM is None:
        assert not os.environ.get("PMAPDP_REQUIRE_CHROMIUM"), "PMAPDP_REQUIRE_CHROMIUM is set and there is no Chromium"
        pytest.skip("no Chromium here: apt-get install chromium")
    # A headless window has a least width of its own; a frame of the wanted width has not.
    inner, outer = tmp_path / "page.html", tmp_path / "frame.html"
    inner.write_text(page(report).replace("</head>", PROBE + "</head>"))
    outer.write_text(
        f'<iframe id=f src="page.html" style="width:{width}px;height:3000px;border:0" '
        'onload="setTimeout(() => document.title = f.contentDocument.title, 300)"></iframe>'
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    options += ["--hide-scrollbars"]
    options += ["--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1500,3000", "--virtual-time-budget=5000"]
    options += [f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}"]
    done = subprocess.run(
        [CHROMIUM, *options, "--dump-dom", outer.as_uri()], capture_output=True, text=True, timeout=120
    )
    (title,) = re.findall(r"<title>(.*?)</title>", done.stdout)
    found = re.fullmatch(r"wide=(\d+) scroll=(\d+) out=(.*) ground=rgb\((\d+), (\d+), (\d+)\)", title)
    assert found, title
    assert int(found[1]) == width
    assert int(found[2]) <= width
    assert found[3] == ""
    brightness = sum(map(int, found.groups()[3:])) / 3
    assert brightness < 80 if scheme == "dark" else brightness > 200
