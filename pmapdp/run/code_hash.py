"""Hash your functions by their code and the values they hold, to see if one was edited.

Source text alone isn't enough, because `optax.sgd(0.1).update` and
`optax.sgd(0.01).update` have the same. A hash is the same in every process, but not in
another version of Python, whose bytecode differs.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import jax
import numpy as np

import pmapdp

# Functions of these folders are known by their names.
LIBRARIES = (
    sysconfig.get_path("stdlib") + os.sep,
    str(Path(pmapdp.__file__).parent) + os.sep,
)
PLAIN = (types.NoneType, types.EllipsisType, bool, int, float, complex, str, bytes)
# Attributes of a class that say where it was written, or repeat what others say.
NOT_CODE = {
    "__module__",
    "__qualname__",
    "__doc__",
    "__firstlineno__",
    "__static_attributes__",
    "__annotations__",
    "__annotate_func__",
    "__annotations_cache__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "_abc_impl",
}


def hash_function(function: Any) -> str | None:
    """Return a hash of a function, class or callable object.

    It depends on its code, defaults, closure and `partial` arguments, and on the
    functions and values of your files that it names.

    Returns:
        16 hexadecimal digits, or None if it holds a value that can't be hashed.
    """
    try:
        described = Description().describe(function)
    except NotHashableError:
        return None
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


class NotHashableError(Exception):
    """A function holds a value that isn't the same in another process."""


class Description:
    """Describes values as nested tuples of plain values, each function or class once."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def describe(self, value: Any) -> Any:
        """Describe any value."""
        if isinstance(value, PLAIN):
            return type(value).__name__, repr(value)
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            array = np.asarray(value)
            return "array", str(array.dtype), array.shape, array.tobytes()
        if isinstance(value, np.dtype | enum.Enum):
            return type(value).__name__, str(value)
        if isinstance(value, types.ModuleType):
            return "module", value.__name__
        for number, earlier in enumerate(self.seen):
            if earlier is value:
                return "seen", number
        self.seen.append(value)
        if isinstance(value, dict):
            return "dict", [self.describe(item) for item in value.items()]
        if isinstance(value, set | frozenset):
            return "set", sorted(repr(self.describe(item)) for item in value)
        if isinstance(value, tuple | list):
            return type(value).__name__, [self.describe(item) for item in value]
        return self.describe_code(value)

    def describe_code(self, value: Any) -> Any:
        """Describe a function, class or object."""
        name = getattr(value, "__qualname__", getattr(value, "__name__", None))
        module = sys.modules.get(getattr(value, "__module__", None) or "builtins")
        if is_of_library(value) and getattr(module, str(name), None) is value:
            return "library", value.__module__, name
        if isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords
            return "partial", [self.describe(part) for part in parts]
        if isinstance(value, types.MethodType):
            return (
                "method",
                self.describe(value.__func__),
                self.describe(value.__self__),
            )
        if isinstance(value, staticmethod | classmethod):
            return type(value).__name__, self.describe(value.__func__)
        if isinstance(value, property):
            return "property", self.describe(value.fget)
        if isinstance(value, types.FunctionType):
            return self.describe_function(value)
        if isinstance(value, type):
            return self.describe_class(value)
        if hasattr(value, "__wrapped__"):  # as jax.jit makes it
            return type(value).__name__, self.describe(value.__wrapped__)
        return self.describe_object(value)

    def describe_object(self, value: Any) -> Any:
        """Describe an object by its class and fields."""
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
        elif is_of_library(type(value)) or not hasattr(value, "__dict__"):
            raise NotHashableError
        else:
            names = sorted(vars(value))
        fields = [(name, self.describe(getattr(value, name))) for name in names]
        return "object", self.describe(type(value)), fields

    def describe_class(self, value: type) -> Any:
        """Describe a class by its attributes and bases, or by its name if a library has it."""
        if is_of_library(value):
            return "library", value.__module__, value.__qualname__
        attributes = []
        for name, attribute in sorted(vars(value).items()):
            is_slot = isinstance(
                attribute, types.GetSetDescriptorType | types.MemberDescriptorType
            )
            # Flax derives its own attributes from the others.
            is_flax = name.startswith("_pytree__")
            if name not in NOT_CODE and not is_slot and not is_flax:
                attributes.append((name, self.describe(attribute)))
        return "class", attributes, [self.describe(base) for base in value.__bases__]

    def describe_function(self, function: types.FunctionType) -> Any:
        """Describe a function by its code and all values that it can reach."""
        code = function.__code__
        values = {
            "defaults": function.__defaults__,
            "keyword defaults": function.__kwdefaults__,
            "wrapped": getattr(function, "__wrapped__", None),
        }
        for name, cell in zip(
            code.co_freevars, function.__closure__ or (), strict=True
        ):
            # The cell may be empty until a later assignment.
            with contextlib.suppress(ValueError):
                values[f"closure {name}"] = cell.cell_contents
        described = [(name, self.describe(held)) for name, held in values.items()]
        if is_of_library(function):
            full_name = f"{function.__module__}.{function.__qualname__}"
            return "library function", full_name, described
        in_file = function.__globals__
        names = sorted(names_of(code) & in_file.keys())
        described += [(name, self.describe(in_file[name])) for name in names]
        return "function", describe_bytecode(code), described


def is_of_library(value: Any) -> bool:
    """Return if a function or class comes from Python, an installed package or pmapdp."""
    module = sys.modules.get(getattr(value, "__module__", None) or "builtins")
    file = getattr(module, "__file__", None)
    code = getattr(value, "__code__", None)
    if code is not None and not code.co_filename.startswith("<"):
        file = code.co_filename
    if file is None:
        return module is not None and module.__name__ in sys.builtin_module_names
    is_installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return bool(is_installed) or file.startswith(LIBRARIES)


def names_of(code: types.CodeType) -> set[str]:
    """Return the names that a function and the functions in it look up."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= names_of(constant)
    return names


def describe_bytecode(code: types.CodeType) -> Any:
    """Describe compiled code without its place in the file."""
    constants = []
    for constant in code.co_consts:
        if inspect.iscode(constant):
            constants.append(describe_bytecode(constant))
        else:
            constants.append(Description().describe(constant))
    return code.co_code.hex(), code.co_names, code.co_varnames, constants
