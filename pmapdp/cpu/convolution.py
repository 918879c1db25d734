"""Convolution and pooling written for the CPU, where XLA's own are slow (`python -m benchmarks.convolution`).

`faster` takes a function with plain `nnx.Conv` and `nnx.max_pool` in it and puts these in their place.

Shapes: b examples, H x W pixels, C channels in, F out.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from pmapdp.cpu.program import Evaluation, rewritten, shape_of
from pmapdp.cpu.winograd import tile_size, winograd

LAYOUT = ("NHWC", "HWIO", "NHWC")
FEW = 8  # examples, the fewest with which Winograd's algorithm was measured to be faster

Padding = Sequence[tuple[int, int]]


def faster(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with faster convolutions and poolings; to be applied before it is differentiated."""
    return rewritten(function, {"conv_general_dilated": convolution_rule, "reduce_window_max": pooling_rule})


def convolution_rule(_: Evaluation, equation: core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any] | None:
    """Groups, dilation, a type of their own for the sums, other layouts and other than two axes stay XLA's."""
    params, (images, kernel) = equation.params, inputs
    if not is_plain(equation):
        return None
    return [convolve(images, kernel, params["window_strides"], params["padding"], params["precision"])]


def is_plain(equation: core.JaxprEqn) -> bool:
    """Whether it is a convolution of `[b, H, W, C]` by `[rows, columns, C, F]` without extras."""
    params, images = equation.params, shape_of(equation.invars[0])
    numbers = params["dimension_numbers"]
    return (
        (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec) == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
        and params["feature_group_count"] == params["batch_group_count"] == 1
        and {*params["lhs_dilation"], *params["rhs_dilation"]} == {1}
        and params["preferred_element_type"] in (None, images.dtype)
    )


def pooling_rule(evaluation: Evaluation, equation: core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any] | None:
    """The maximum over windows of 2x2 with stride 2. A bias and a ReLU before it give the same numbers after it, on a
    quarter of the work; before those it may meet a convolution."""
    params = equation.params
    window, strides = params["window_dimensions"], params["window_strides"]
    plain = {*params["base_dilation"], *params["window_dilation"]} == {1} and not any(map(any, params["padding"]))
    if not (tuple(window) == tuple(strides) == (1, 2, 2, 1) and plain):
        return None
    variable, after = equation.invars[0], []
    while (maker := evaluation.makers.get(variable)) is not None:
        if is_relu(maker):
            after.append(lambda x: jnp.maximum(x, 0))
        elif maker.primitive.name == "add" and shape_of(maker.invars[1]).shape[:3] == (1, 1, 1):
            after.append(functools.partial(jnp.add, evaluation.read(maker.invars[1])))
        else:
            break
        variable = maker.invars[0]
    if maker is not None and fits_four_products(maker):
        x = convolve_and_pool(*map(evaluation.read, maker.invars))
    else:
        x = max_pool_2x2(evaluation.read(variable))
    for function in reversed(after):
        x = function(x)
    return [x]


def is_relu(equation: core.JaxprEqn) -> bool:
    """Whether it is `jax.nn.relu`, whose derivative at 0 is 0."""
    return equation.primitive.name == "custom_jvp_call" and equation.params.get("name") == "relu"


def fits_four_products(equation: core.JaxprEqn) -> bool:
    """Whether `convolve_and_pool` can compute a convolution and the pooling after it."""
    if equation.primitive.name != "conv_general_dilated" or not is_plain(equation):
        return False
    params, (images, kernel) = equation.params, map(shape_of, equation.invars)
    as_it_is = tuple(params["window_strides"]) == (1, 1) and not any(map(any, params["padding"]))
    return as_it_is and kernel.shape[:3] == (3, 3, 1) and images.dtype != jnp.bfloat16


def convolve(images: jax.Array, kernel: jax.Array, strides: Any, padding: Padding, precision: Any = None) -> jax.Array:
    """`lax.conv_general_dilated` of `[b, H, W, C]` by `[rows, columns, C, F]`, in the way that is fastest."""
    (rows, columns, channels, _), strides = kernel.shape, tuple(strides)
    if images.dtype != jnp.bfloat16:  # too coarse to be added up in other ways
        padded = jnp.pad(images, ((0, 0), *padding, (0, 0)))
        if channels == 1 and strides == (1, 1):
            return one_channel(padded, kernel)
        stride = {((3, 3), (1, 1)): 1, ((6, 6), (2, 2)): 2}.get(((rows, columns), strides))
        b, H, W, _ = padded.shape
        if stride and b >= FEW and H % stride == W % stride == 0:
            m = tile_size(H // stride - 2, W // stride - 2)
            if m:
                return winograd(padded, kernel, stride, m)
    return canonical(images, kernel, strides, tuple(map(tuple, padding)), precision)


def one_channel(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """`[b, H, W, 1]` without padding, stride 1, as one matrix product.

    A row of the first matrix holds what a block of neighbouring pixels of the output sees, and the second gives all
    channels of the block: F columns alone would be too few for the processor's vectors.
    """
    rows, columns, _, F = kernel.shape
    b, H, W = images.shape[0], images.shape[1] - rows + 1, images.shape[2] - columns + 1
    block = math.gcd(W, 4)
    seen = columns + block - 1
    x = images[..., 0]
    shifted = [x[:, i : i + H, j : j + W - block + 1 : block] for i in range(rows) for j in range(seen)]
    pixels = jnp.stack(shifted, -1).reshape(-1, rows * seen)
    kernels = [jnp.pad(kernel[:, :, 0], ((0, 0), (q, block - 1 - q), (0, 0))) for q in range(block)]
    return (pixels @ jnp.stack(kernels, 2).reshape(rows * seen, block * F)).reshape(b, H, W, F)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def canonical(images: jax.Array, kernel: jax.Array, strides: Any, padding: Padding, precision: Any) -> jax.Array:
    """XLA's convolution, with gradients that are convolutions of the same form.

    Only this form has a fast kernel in XLA for CPUs. XLA brings the gradients that JAX derives to it too, but only at
    the top level of a program: in a loop they take up to 20 times as long (`benchmarks.convolution --in-a-loop`).
    """
    return lax.conv_general_dilated(images, kernel, strides, padding, dimension_numbers=LAYOUT, precision=precision)


def canonical_gradients(strides: Any, padding: Padding, precision: Any, residuals: Any, dy: jax.Array) -> Any:
    """Between the pixels of `dy` stand stride - 1 zeros, as many as the convolution stepped over.

    The images' gradient is the convolution of `dy` with the kernel turned round, channels in and out exchanged. The
    kernel's is that of the images with `dy` as the kernel: channels in stand for examples, and examples are summed as
    channels are.
    """
    images, kernel = residuals
    options: dict[str, Any] = {"dimension_numbers": LAYOUT, "precision": precision}
    into_images, into_kernel = [], []
    for axis in (0, 1):
        size, length = images.shape[1 + axis], kernel.shape[axis]
        spread = (dy.shape[1 + axis] - 1) * strides[axis] + 1
        before = padding[axis][0]
        into_images.append((length - 1 - before, size + before - spread))
        into_kernel.append((before, spread + length - 1 - size - before))
    turned = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    dx = lax.conv_general_dilated(dy, turned, (1, 1), into_images, lhs_dilation=strides, **options)
    by_channel, by_pixel = images.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3)
    dk = lax.conv_general_dilated(by_channel, by_pixel, (1, 1), into_kernel, rhs_dilation=strides, **options)
    return dx, dk.transpose(1, 2, 0, 3)


canonical.defvjp(lambda x, kernel, *options: (canonical(x, kernel, *options), (x, kernel)), canonical_gradients)


def larger(x: jax.Array, y: jax.Array) -> jax.Array:
    """The maximum; where both are equal the gradient goes to the first, as in XLA's pooling."""
    return jnp.where((y > x) | jnp.isnan(y), y, x)


def max_pool_2x2(x: jax.Array) -> jax.Array:
    """`[b, H, W, C]` to `[b, H // 2, W // 2, C]`, as the elementwise maximum of the four corners of all windows.

    The gradient of XLA's `reduce_window` (select-and-scatter) takes more than half of a training step.
    """
    b, H, W, C = x.shape
    h, w = H // 2, W // 2
    windows = x[:, : 2 * h, : 2 * w].reshape(b, h, 2, w, 2, C)
    upper, lower = (larger(windows[:, :, i, :, 0], windows[:, :, i, :, 1]) for i in (0, 1))
    return larger(upper, lower)


def convolve_and_pool(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """A 3x3 convolution without padding, then the maximum over windows of 2x2.

    A window of the pooling sees 4x4 pixels. The convolution at each of its four corners is a matrix product of these
    pixels with the kernel, put into that corner of a 4x4 kernel. So the maximum is taken over four products, and the
    convolved images are never brought into the order of their pixels.

    Args:
        images: `[b, H, W, 1]`.
        kernel: `[3, 3, 1, F]`.

    Returns:
        `[b, (H - 2) // 2, (W - 2) // 2, F]`.
    """
    b, h, w = images.shape[0], *((size - 2) // 2 for size in images.shape[1:3])
    shifted = [images[:, i : i + 2 * h - 1 : 2, j : j + 2 * w - 1 : 2] for i in range(4) for j in range(4)]
    pixels = jnp.concatenate(shifted, -1).reshape(-1, 16)  # as one matrix: products of batches take twice as long
    products = [
        (pixels @ jnp.pad(kernel[:, :, 0], ((i, 1 - i), (j, 1 - j), (0, 0))).reshape(16, -1)).reshape(b, -1)
        for i in (0, 1)
        for j in (0, 1)
    ]
    return larger(larger(*products[:2]), larger(*products[2:])).reshape(b, h, w, -1)
