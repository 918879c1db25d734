"""Apply a difference to a file: lesson 12 repairs an old program."""

from pathlib import Path


def apply(file: str, difference: str) -> None:
    """Change lines of a file.

    Args:
        difference: blocks with an empty line between them. In each, the lines that begin
            with `-` go, and the lines that begin with `+` take their place.

    Raises ValueError if the lines that go aren't in the file exactly once.
    """
    text = Path(file).read_text()
    for block in difference.strip().split("\n\n"):
        lines = block.splitlines()
        old = "".join(f"{line[1:]}\n" for line in lines if line.startswith("-"))
        new = "".join(f"{line[1:]}\n" for line in lines if line.startswith("+"))
        if text.count(old) != 1:
            raise ValueError(f"{file} has these lines {text.count(old)} times:\n{old}")
        text = text.replace(old, new)
    Path(file).write_text(text)
