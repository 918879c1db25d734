"""docs/compare.md: its two programs are compared as the page shows."""

import re
from pathlib import Path

import entry
import pytest

from pmapdp.compare.words import ROUNDING

PAGE = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_two_programs_are_compared(folder):
    """The page's table has everything but the times, which differ."""
    (programs,) = re.findall(r"```python\n(# steps\.py\n.*?)```", PAGE, re.DOTALL)
    Path("steps.py").write_text(programs)
    (command,) = re.findall(r"^    python -m pmapdp\.compare (steps.*)$", PAGE, re.M)
    done = entry.run_command("compare", *command.split())
    assert done.status == 0, done.err
    for name in ("old", "new"):
        row = rf"^ (steps\.py:{name}  .*)"
        shown = re.split("  +", re.search(row, PAGE, re.MULTILINE)[1].strip())
        printed = re.split("  +", re.search(row, done.out, re.MULTILINE)[1].strip())
        assert (shown[:3], shown[4:]) == (printed[:3], printed[4:])
    verdict = re.search(
        r"^pmapdp.verify finds.*?(?=```$)", PAGE, re.DOTALL | re.MULTILINE
    )
    sentences = " ".join(verdict[0].split())
    assert "pmapdp.verify finds that each step equals its reference." in sentences
    assert sentences in " ".join(done.out.split())
    assert "steps.py" in Path("page.html").read_text()


def test_the_limits_of_rounding():
    page = " ".join(PAGE.split())
    assert f"{ROUNDING['float32']:.0e}".replace("e-0", "e-") == "1e-2"
    assert "than 1e-2 from a single device's in float32" in page
    assert f"{ROUNDING['float64']:.0e}".replace("e-0", "e-") == "1e-9"
    assert "than 1e-9 in float64" in page
