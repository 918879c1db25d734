"""What the programs call of Equinox, for tests where it is not installed: modules that are pytrees, and filters."""

import dataclasses
import functools

import jax
import numpy as np


def field(*, static=False):
    """A field of a module; a static one is part of the structure."""
    return dataclasses.field(metadata={"static": static})


class Module:
    """A class whose fields are the leaves of a pytree."""

    def __init_subclass__(cls):
        made = dataclasses.dataclass(init="__init__" not in vars(cls), eq=False)(cls)
        static = [f.name for f in dataclasses.fields(made) if f.metadata.get("static", False)]
        leaves = [f.name for f in dataclasses.fields(made) if f.name not in static]

        def unflatten(values, children):
            module = object.__new__(made)  # its own __init__ takes something else
            vars(module).update(zip(leaves + static, [*children, *values], strict=True))
            return module

        jax.tree_util.register_pytree_node(
            made, lambda m: ([getattr(m, f) for f in leaves], tuple(getattr(m, f) for f in static)), unflatten
        )


def is_array(x):
    """Whether `x` is an array of JAX."""
    return isinstance(x, jax.Array)


def filter(tree, keep):
    """The tree with None for the leaves that `keep` refuses."""
    return jax.tree.map(lambda x: x if keep(x) else None, tree)


def partition(tree, keep):
    """Two trees: the leaves that `keep` accepts, and the others."""
    return filter(tree, keep), filter(tree, lambda x: not keep(x))


def combine(*trees):
    """The first leaf that is not None."""
    choose = lambda *leaves: next((x for x in leaves if x is not None), None)  # noqa: E731
    return jax.tree.map(choose, *trees, is_leaf=lambda x: x is None)


def filter_value_and_grad(function, *, has_aux=False):
    """The gradient for the arrays of the first argument."""
    return jax.value_and_grad(function, has_aux=has_aux)


def apply_updates(model, updates):
    """The model plus its updates; those that are None change nothing."""
    return jax.tree.map(lambda u, p: p if u is None else p + u, updates, model, is_leaf=lambda x: x is None)


def filter_pmap(function=None, *, axis_name=None):
    """`jax.pmap` over the arrays of all arguments; the rest is static."""
    if function is None:
        return functools.partial(filter_pmap, axis_name=axis_name)
    arrays = lambda x: isinstance(x, jax.Array | np.ndarray)  # noqa: E731

    @functools.wraps(function)
    def mapped(*arguments):
        dynamic, static = partition(arguments, arrays)
        return jax.pmap(lambda dynamic: function(*combine(dynamic, static)), axis_name=axis_name)(dynamic)

    return mapped
