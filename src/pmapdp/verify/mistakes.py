"""The mistakes that `verify` knows: the sentence with the cause and the cure of each, from the table in mistakes.md."""

import functools
import re
from importlib import resources

ROW = re.compile(r"^\| (.+?) \|.*\| (.+) \|$", re.MULTILINE)

Cause = tuple[str, str]  # its name in the table, and its sentence with what was found


@functools.cache
def mistakes() -> dict[str, str]:
    """The sentences by the name of the cause; in braces what was found."""
    return dict(ROW.findall(resources.files("pmapdp.verify").joinpath("mistakes.md").read_text(encoding="utf-8")))


def named(cause: str, leaves: list[str] | None = None, **found) -> Cause:
    """A cause and its sentence, with what was found; of many leaves the first three are named."""
    leaves = leaves or []
    more = f" and {len(leaves) - 3} more" if len(leaves) > 3 else ""
    return cause, mistakes()[cause].format(leaves=", ".join(leaves[:3]) + more, **found)
