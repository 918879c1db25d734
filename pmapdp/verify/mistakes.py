"""The catalogue of mistakes, `mistakes.toml`: lines that are right, wrong ones, and what `verify` says of them."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pmapdp.verify.trees import few

Cause = tuple[str, str]  # a name in the catalogue, and its sentence with what was found
CATALOGUE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def name_cause(cause: str, leaves: Sequence[str] = (), **found: Any) -> Cause:
    """Return a cause and its sentence with what was found."""
    return cause, " ".join(CATALOGUE[cause]["says"].split()).format(leaves=few(leaves), **found)
