"""The programs of tests/programs: run them, as they are or changed in one place.

They are written as pmap programs were from 2020 to 2024. A program whose library is not installed gets its stand-in,
always the same, so that results do not depend on what else is installed.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest import mock

import jax

FOLDER = Path(__file__).parent.parent / "programs"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
LIBRARIES = ("haiku", "jmp", "equinox", "jraph")


@contextmanager
def stand_ins():
    """Imports of the libraries find those of the folder `stand_ins`, and nobody else sees them afterwards."""
    hidden = {name: sys.modules.pop(name) for name in LIBRARIES if name in sys.modules}
    sys.path.insert(0, str(FOLDER / "stand_ins"))
    try:
        yield
    finally:
        sys.path.remove(str(FOLDER / "stand_ins"))
        for name in LIBRARIES:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


def load(name: str, changes: Mapping[str, str] | None = None, pmap: Callable | None = None) -> ModuleType:
    """The module of a program, with texts of it replaced, each of which stands there once, and another `jax.pmap`."""
    source = (FOLDER / f"{name}.py").read_text()
    for old, new in (changes or {}).items():
        assert source.count(old) == 1, (name, old)
        source = source.replace(old, new)
    module = ModuleType(f"programs_{name}")
    sys.modules[module.__name__] = module  # dataclasses look for their module here
    with stand_ins(), mock.patch.object(jax, "pmap", pmap or jax.pmap):
        exec(compile(source, str(FOLDER / f"{name}.py"), "exec"), vars(module))
    return module


def run(name: str, changes: Mapping[str, str] | None = None, pmap: Callable | None = None):
    """What `main` of a program returns: its last state and what it measured."""
    module = load(name, changes, pmap)
    with stand_ins(), mock.patch.object(jax, "pmap", pmap or jax.pmap):
        return module.main()
