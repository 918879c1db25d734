"""Read the mistakes of `mistakes.toml`, which compare's page shows."""

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Mistake:
    """A mistake that raises no error, as small programs.

    Attributes:
        name: for people.
        one_device: the lines that are correct on one device, and under jit.
        wrong: the lines that are wrong on several.
        size: how far off they are.
        why_wrong: the reason.
        right: correct lines in their place.
        why_right: the reason.
        check_vma: the lines are wrong only with this option of shard_map.
        ddp: what PyTorch's DistributedDataParallel does by default, or empty.
    """

    name: str
    one_device: str
    wrong: str
    size: str
    why_wrong: str
    right: str
    why_right: str
    check_vma: bool = False
    ddp: str = ""


def load_mistakes() -> list[Mistake]:
    """Read the mistakes."""
    file = resources.files("pmapdp.compare").joinpath("mistakes.toml")
    tables = tomllib.loads(file.read_text("utf-8"))["mistakes"]
    return [Mistake(**table) for table in tables]
