"""Convolution and pooling written for the CPU, where XLA's own are slow (`python -m benchmarks.convolution`).

`faster` puts them into a function. Shapes: b examples, H x W pixels, C channels in, F out.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pmapdp.cpu.program import Equation, Evaluation, rewritten
from pmapdp.cpu.winograd import winograd

LAYOUT = ("NHWC", "HWIO", "NHWC")
SPECS = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))  # the same, as an equation has it
FEW = 8  # examples, the fewest with which Winograd's algorithm was measured to be faster


def faster(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with faster convolutions and poolings, to be differentiated afterwards."""
    return rewritten(function, {"conv_general_dilated": convolution_rule, "reduce_window_max": pooling_rule})


def is_plain(equation: Equation, *, one_channel: bool = False) -> bool:
    """Whether it is a convolution of `[b, H, W, C]` by `[rows, columns, C, F]`, without groups, dilation or a type of
    its own for the sums; `one_channel`: and of C = 1, without padding, stride 1. bfloat16 is too coarse to be added up
    in other ways."""
    params, (images, kernel) = equation.params, (each.aval for each in equation.invars)
    if one_channel and (kernel.shape[2] > 1 or {*params["window_strides"]} != {1} or any(map(any, params["padding"]))):
        return False
    return (
        params["dimension_numbers"] == SPECS
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and {*params["lhs_dilation"], *params["rhs_dilation"]} == {1}
        and params["preferred_element_type"] in (None, images.dtype)
        and images.dtype != jnp.bfloat16
    )


def convolution_rule(_: Evaluation, equation: Equation, inputs: Sequence[Any]) -> Sequence[Any]:
    """In the way that is fastest."""
    params, (images, kernel) = equation.params, inputs
    if is_plain(equation):
        padded = jnp.pad(images, ((0, 0), *params["padding"], (0, 0)))
        (rows, columns, channels, _), strides = kernel.shape, tuple(params["window_strides"])
        if channels == 1 and strides == (1, 1):
            # For several pixels at once: F columns alone would be too few for the processor's vectors.
            pixels, kernels, _ = in_blocks(padded, kernel, 1, math.gcd(padded.shape[2] - columns + 1, 4))
            return [(pixels @ jnp.concatenate(kernels, 1)).reshape(equation.outvars[0].aval.shape)]
        stride = {((3, 3), (1, 1)): 1, ((6, 6), (2, 2)): 2}.get(((rows, columns), strides))
        y = winograd(padded, kernel, stride) if stride and len(images) >= FEW else None
        if y is not None:
            return [y]
    return [convolution(images, kernel, params)]


def in_blocks(images: jax.Array, kernel: jax.Array, p: int, q: int) -> tuple[jax.Array, list[jax.Array], Any]:
    """A convolution of `[b, H, W, 1]` without padding, stride 1, as products, in blocks of p x q pixels of its output:
    what each block sees; for each of its pixels the kernel, put into one corner of as many; the products' shape."""
    (b, H, W, _), (rows, columns, _, F) = images.shape, kernel.shape
    h, w = max(0, H - rows + 1) // p, max(0, W - columns + 1) // q
    seen = [(i, j) for i in range(rows + p - 1) for j in range(columns + q - 1)]
    shifted = [images[:, i : i + p * h : p, j : j + q * w : q][:, :h, :w] for i, j in seen]
    pixels = jnp.concatenate(shifted, -1).reshape(-1, len(seen))  # products of batches would take twice as long
    corners = [((i, p - 1 - i), (j, q - 1 - j), (0, 0)) for i in range(p) for j in range(q)]
    return pixels, [jnp.pad(kernel[:, :, 0], each).reshape(-1, F) for each in corners], (b, h, w, F)


def convolution(images: jax.Array, kernel: jax.Array, params: dict[str, Any]) -> jax.Array:
    """XLA's convolution, with gradients that are convolutions of `LAYOUT` too.

    Only this layout has a fast kernel in XLA for CPUs. XLA brings the gradients that JAX derives to it too, but only at
    the top level of a program: in a loop they take up to 20 times as long (`benchmarks.convolution --in-a-loop`).
    """

    def plain(images: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated_p.bind(images, kernel, **params)

    def gradients(residuals: Any, dy: jax.Array) -> Any:
        return rewritten(jax.vjp(plain, *residuals)[1], {"conv_general_dilated": in_layout})(dy)

    function = jax.custom_vjp(plain)
    function.defvjp(lambda images, kernel: (plain(images, kernel), (images, kernel)), gradients)
    return function(images, kernel)


def in_layout(_: Evaluation, equation: Equation, inputs: Sequence[Any]) -> Sequence[Any] | None:
    """A convolution over two axes with its arrays brought into `LAYOUT`."""
    left, right, out = equation.params["dimension_numbers"]
    if len(left) != 4:
        return None
    x = inputs[0].transpose([left[axis] for axis in (0, 2, 3, 1)])
    k = inputs[1].transpose([right[axis] for axis in (2, 3, 1, 0)])
    y = equation.primitive.bind(x, k, **equation.params | {"dimension_numbers": SPECS})
    return [y.transpose([(0, 3, 1, 2)[out.index(axis)] for axis in range(4)])]


def pooling_rule(evaluation: Evaluation, equation: Equation, _: Sequence[Any]) -> Sequence[Any] | None:
    """The maximum over windows of 2x2 with stride 2. A bias and a ReLU before it give the same numbers after it, on a
    quarter of the work; before those it may meet a convolution, each of whose corners is then a product."""
    params = equation.params
    window, strides = params["window_dimensions"], params["window_strides"]
    plain = {*params["base_dilation"], *params["window_dilation"]} == {1} and not any(map(any, params["padding"]))
    if not (tuple(window) == tuple(strides) == (1, 2, 2, 1) and plain):
        return None
    variable, after = equation.invars[0], []
    while (maker := evaluation.makers.get(variable)) is not None:
        if maker.primitive.name == "custom_jvp_call" and source(maker) == source_of_relu():
            after.append(jax.nn.relu)
        elif maker.primitive.name == "add" and maker.invars[1].aval.shape[:3] == (1, 1, 1):
            after.append(functools.partial(jnp.add, evaluation.read(maker.invars[1])))
        else:
            break
        variable = maker.invars[0]
    if maker is not None and maker.primitive.name == "conv_general_dilated" and is_plain(maker, one_channel=True):
        images, kernel = map(evaluation.read, maker.invars)
        pixels, kernels, shape = in_blocks(images, kernel, 2, 2)
        corners = [(pixels @ each).reshape(shape) for each in kernels]
    else:
        x = evaluation.read(variable)
        b, H, W, C = x.shape
        x = x[:, : H // 2 * 2, : W // 2 * 2].reshape(b, H // 2, 2, W // 2, 2, C)
        corners = [x[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]
    x = larger(larger(*corners[:2]), larger(*corners[2:]))
    for function in reversed(after):
        x = function(x)
    return [x]


def source(equation: Equation) -> str:
    """Name, file and line of a function with its own derivative."""
    return equation.params["call_jaxpr"].jaxpr.debug_info.func_src_info


@functools.cache
def source_of_relu() -> str:
    """That of `jax.nn.relu`, which is Flax' too."""
    return source(jax.make_jaxpr(jax.nn.relu)(0.0).eqns[0])


def larger(x: jax.Array, y: jax.Array) -> jax.Array:
    """The maximum; where both are equal the gradient goes to the first, as in XLA's pooling, whose select-and-scatter
    takes more than half of a training step."""
    return jnp.where((y > x) | jnp.isnan(y), y, x)
