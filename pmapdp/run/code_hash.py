"""Hash your functions by their code and the values they hold, to see if one was edited.

Source text alone isn't enough, because `optax.sgd(0.1).update` and
`optax.sgd(0.01).update` have the same. A hash is the same in every process, but not in
another version of Python, whose bytecode differs.
"""

import contextlib
import dataclasses
import hashlib
import inspect
import os
import pickle
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pmapdp

# A function of these folders is hashed by its name.
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
    "__dict__",
    "__weakref__",
    "__slotnames__",
    "__firstlineno__",
    "__static_attributes__",
    "__annotations__",
    "__annotate_func__",
    "__annotations_cache__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "_abc_impl",
}
# Flax's own attributes, which it derives from the others or makes anew in each process.
FLAX_ATTRIBUTES = ("_pytree__", "_trace_state")


def hash_function(function: Any) -> str | None:
    """Return a hash of a function, class or callable object.

    It depends on its code, defaults, closure and `partial` arguments, on the functions
    and values of your files that it names, and on every number of the arrays and
    modules that it holds.

    Returns:
        16 hexadecimal digits, or None if it holds a value that can't be hashed.
    """
    try:
        described = Description().describe(function)
    # A file or a lock can't be pickled, so it isn't the same in another process.
    except (TypeError, pickle.PicklingError):
        return None
    return hashlib.sha256(repr(described).encode()).hexdigest()[:16]


class Description:
    """Describes values as tuples of plain values, each function or class once."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def describe(self, value: Any) -> Any:
        """Describe any value."""
        type_name = type(value).__name__
        if isinstance(value, PLAIN):
            return type_name, repr(value)
        if isinstance(value, jax.Array) and jnp.issubdtype(
            value.dtype, jax.dtypes.prng_key
        ):
            value = jax.random.key_data(value)
        if isinstance(value, jax.Array | np.ndarray):
            array = np.asarray(value)
            return "array", str(array.dtype), array.shape, array.tobytes()
        if isinstance(value, types.ModuleType):
            return "module", value.__name__
        if isinstance(value, jax.tree_util.PyTreeDef):
            return type_name, str(value)
        return self.describe_parts(value)

    def describe_parts(self, value: Any) -> Any:
        """Describe a value that holds others."""
        type_name = type(value).__name__
        # `seen` goes by identity, which says nothing about constants: Python may store
        # equal ones once or several times.
        if isinstance(value, tuple):
            return type_name, [self.describe(element) for element in value]
        if isinstance(value, set | frozenset):
            return type_name, sorted(repr(self.describe(element)) for element in value)
        if isinstance(value, types.CodeType):
            parts = value.co_code, value.co_names, value.co_varnames, value.co_consts
            return type_name, self.describe(parts)
        for number, earlier in enumerate(self.seen):
            if earlier is value:
                return "seen", number
        self.seen.append(value)
        if isinstance(value, list):
            return type_name, [self.describe(element) for element in value]
        if isinstance(value, dict):
            pairs = []
            for key, element in value.items():
                if not str(key).startswith(FLAX_ATTRIBUTES):
                    pairs.append(self.describe((key, element)))
            return type_name, pairs
        return self.describe_code(value)

    def describe_code(self, value: Any) -> Any:
        """Describe a function, class or object."""
        name = getattr(value, "__qualname__", getattr(value, "__name__", None))
        module = sys.modules.get(getattr(value, "__module__", None) or "builtins")
        if is_of_library(value) and getattr(module, str(name), None) is value:
            return "library", value.__module__, name
        if isinstance(value, types.FunctionType):
            return self.describe_function(value)
        if isinstance(value, type):
            return self.describe_class(value)
        if isinstance(value, property):
            return "property", self.describe(value.fget)
        if hasattr(value, "__wrapped__"):  # as jax.jit and staticmethod make it
            return type(value).__name__, self.describe(value.__wrapped__)
        if dataclasses.is_dataclass(value):
            names = [field.name for field in dataclasses.fields(value)]
            fields = [(name, self.describe(getattr(value, name))) for name in names]
            return "dataclass", self.describe(type(value)), fields
        # Any other object says how to make it again in another process.
        return "object", self.describe(value.__reduce_ex__(4))

    def describe_class(self, value: type) -> Any:
        """Describe a class by its attributes and bases, or by its name in a library."""
        if is_of_library(value):
            return "library", value.__module__, value.__qualname__
        attributes = []
        for name, attribute in sorted(vars(value).items()):
            if name not in NOT_CODE and not name.startswith(FLAX_ATTRIBUTES):
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
        cells = function.__closure__ or ()
        for name, cell in zip(code.co_freevars, cells, strict=True):
            # The cell may be empty until a later assignment.
            with contextlib.suppress(ValueError):
                values[f"closure {name}"] = cell.cell_contents
        if is_of_library(function):
            full_name = f"{function.__module__}.{function.__qualname__}"
            return "library function", full_name, self.describe(values)
        for name in sorted(names_of(code) & function.__globals__.keys()):
            values[f"global {name}"] = function.__globals__[name]
        return "function", self.describe(code), self.describe(values)


def is_of_library(value: Any) -> bool:
    """Return True for a function or class of Python, a package or pmapdp."""
    name = getattr(value, "__module__", None) or "builtins"
    # A module of C++ code may not be listed under its own name.
    module = sys.modules.get(name) or sys.modules.get(name.partition(".")[0])
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
