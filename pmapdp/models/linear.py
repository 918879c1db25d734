"""A linear layer whose parameters say what their axes stand for."""

from collections.abc import Callable
from typing import Any

from flax import nnx

from pmapdp.models.axes import named


def linear(
    inputs: int, outputs: int, names: tuple[str, str], *, kernel_init: Callable[..., Any], **options: Any
) -> nnx.Linear:
    """`[..., inputs]` to `[..., outputs]`; the bias starts at 0.

    Args:
        inputs: size of the last axis.
        outputs: the same of the result.
        names: logical names of the kernel's two axes, for example `("features", "hidden")`.
        kernel_init: the kernel's initialiser.
        options: for `nnx.Linear`.
    """
    bias_init = named(nnx.initializers.zeros_init(), names[1])
    return nnx.Linear(inputs, outputs, kernel_init=named(kernel_init, *names), bias_init=bias_init, **options)
