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
from pmapdp.cpu.winograd import tile_size, winograd

LAYOUT = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))  # NHWC, HWIO, NHWC: Flax's own
POOLING = dict.fromkeys(("window_dimensions", "window_strides"), (1, 2, 2, 1)) | {"padding": ((0, 0),) * 4}
POOLING |= dict.fromkeys(("base_dilation", "window_dilation"), (1, 1, 1, 1))
FEW = 8  # examples, the fewest with which Winograd's algorithm was measured to be faster


def faster(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with faster convolutions and poolings, to be differentiated afterwards."""
    return rewritten(function, {"conv_general_dilated": convolution_rule, "reduce_window_max": pooling_rule})


def is_plain(equation: Equation) -> bool:
    """Whether it is a convolution of `[b, H, W, C]` by `[rows, columns, C, F]`, without groups, dilation or a type of
    its own for the sums. bfloat16 is too coarse to be added up in other ways."""
    params, images = equation.params, equation.invars[0].aval
    return (
        params["dimension_numbers"] == LAYOUT
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and {*params["lhs_dilation"], *params["rhs_dilation"]} == {1}
        and params["preferred_element_type"] in (None, images.dtype)
        and images.dtype != jnp.bfloat16
    )


def has_one_channel(equation: Equation) -> bool:
    """Whether it is one of them with C = 1 and stride 1."""
    return is_plain(equation) and equation.invars[0].aval.shape[3] == 1 and {*equation.params["window_strides"]} == {1}


def convolution_rule(_: Evaluation, equation: Equation, inputs: Sequence[Any]) -> Sequence[Any]:
    """In the way that is fastest."""
    params, (images, kernel), y = equation.params, inputs, equation.outvars[0].aval
    padding = ((0, 0), *params["padding"], (0, 0))
    if has_one_channel(equation):
        # For several pixels at once: F columns alone would be too few for the processor's vectors.
        pixels, kernels, _ = in_blocks(jnp.pad(images, padding), kernel, 1, math.gcd(y.shape[2], 4))
        return [(pixels @ jnp.concatenate(kernels, 1)).reshape(y.shape)]
    stride = {((3, 3), (1, 1)): 1, ((6, 6), (2, 2)): 2}.get((kernel.shape[:2], tuple(params["window_strides"])))
    if is_plain(equation) and stride and len(images) >= FEW and (m := tile_size(*y.shape[1:3])):
        return [winograd(jnp.pad(images, padding), kernel, stride, m)]
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
    plain = functools.partial(lax.conv_general_dilated_p.bind, **params)

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
    y = equation.primitive.bind(x, k, **equation.params | {"dimension_numbers": LAYOUT})
    return [y.transpose([(0, 3, 1, 2)[out.index(axis)] for axis in range(4)])]


def pooling_rule(evaluation: Evaluation, equation: Equation, _: Sequence[Any]) -> Sequence[Any] | None:
    """The maximum over windows of 2x2 with stride 2. A bias and a ReLU before it give the same numbers after it, on a
    quarter of the work; before those it may meet a convolution, each of whose corners is then a product."""
    if equation.params != POOLING:
        return None
    variable, after = equation.invars[0], []
    while (maker := evaluation.makers.get(variable)) is not None:
        if maker.primitive.name == "custom_jvp_call" and is_relu(maker):
            after.append(jax.nn.relu)
        elif maker.primitive.name == "add" and maker.invars[1].aval.shape[:3] == (1, 1, 1):
            after.append(functools.partial(jnp.add, evaluation.read(maker.invars[1])))
        else:
            break
        variable = maker.invars[0]
    if maker is not None and maker.primitive.name == "conv_general_dilated" and has_one_channel(maker):
        images, kernel = map(evaluation.read, maker.invars)
        pixels, kernels, shape = in_blocks(jnp.pad(images, ((0, 0), *maker.params["padding"], (0, 0))), kernel, 2, 2)
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


def is_relu(equation: Equation) -> bool:
    """Whether it is `jax.nn.relu`, which is Flax's too: both name the same line of the same file as their source."""
    relu = jax.make_jaxpr(jax.nn.relu)(0.0).eqns[0]
    one, other = (each.params["call_jaxpr"].jaxpr.debug_info.func_src_info for each in (equation, relu))
    return one == other


def larger(x: jax.Array, y: jax.Array) -> jax.Array:
    """The maximum; where both are equal the gradient goes to the first, as in XLA's own, which is slow."""
    return jnp.where((y > x) | jnp.isnan(y), y, x)
