"""The programs of tests/programs, as they are or with a mistake in them.

They are written as pmap programs were from 2020 to 2024.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent.parent / "programs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))


def load(name: str, changes: Mapping[str, str] | None = None) -> ModuleType:
    """The module of a program, with texts of it replaced, each of which is there
    once.
    """
    source = (FOLDER / f"{name}.py").read_text()
    for old, new in (changes or {}).items():
        assert source.count(old) == 1, (name, old)
        source = source.replace(old, new)
    module = ModuleType(f"programs_{name}")
    sys.modules[module.__name__] = module  # dataclasses look for their module here
    exec(compile(source, str(FOLDER / f"{name}.py"), "exec"), vars(module))
    return module
