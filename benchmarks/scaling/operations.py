"""Operations of a program, counted without the compiler: what the compiler's own count is compared with."""

from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params

from pmapdp.scaling.programs import IMAGE, step_shapes
from pmapdp.state import Task
from pmapdp.steps import make_steps


def step_flops(task: Task, batch_size: int, example: jax.ShapeDtypeStruct = IMAGE) -> int:
    """Operations of matrix products and convolutions in a step on one device; see `matrix_flops`."""
    devices = jax.devices()[:1]
    train_step = make_steps("single", task, devices).train_step
    return matrix_flops(train_step, *step_shapes("single", task, devices, batch_size, example))


def matrix_flops(function: Any, *arguments: Any) -> int:
    """Operations of all matrix products and convolutions in `function`, counted from its jaxpr; no compiler is asked.

    A multiply-add counts as two; those of a convolution's window with padding do not count.
    """
    return jaxpr_flops(jax.make_jaxpr(function)(*arguments).jaxpr)


def jaxpr_flops(jaxpr: Any) -> int:
    """The same for a jaxpr; the body of a scan counts as often as it runs, one of a while loop once, and of the
    branches of a condition (such as the ways to do a thing on different kinds of devices) the longest one."""
    total = 0
    for equation in jaxpr.eqns:
        name, result = equation.primitive.name, equation.outvars[0].aval
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval
            total += 2 * result.size * int(np.prod([left.shape[axis] for axis in contracted]))
        elif name == "conv_general_dilated":
            total += convolution_flops(equation)
        times = equation.params.get("length", 1) if name == "scan" else 1
        inner = [jaxpr_flops(jaxpr) for jaxpr in jaxprs_in_params(equation.params)]
        total += times * (max(inner) if name == "cond" else sum(inner))
    return total


def convolution_flops(equation: Any) -> int:
    """Operations of one `conv_general_dilated`: only where the window lies on numbers, not on padding or dilation."""
    image, kernel = (variable.aval.shape for variable in equation.invars)
    result = equation.outvars[0].aval.shape
    numbers, given = equation.params["dimension_numbers"], equation.params
    pairs = 1  # of an output place and a place in the window
    for axis, (image_axis, kernel_axis, result_axis) in enumerate(
        zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    ):
        start = np.arange(result[result_axis])[:, None] * given["window_strides"][axis] - given["padding"][axis][0]
        place = start + np.arange(kernel[kernel_axis]) * given["rhs_dilation"][axis]
        dilation = given["lhs_dilation"][axis]
        inside = (place >= 0) & (place <= (image[image_axis] - 1) * dilation) & (place % dilation == 0)
        pairs *= int(inside.sum())
    batch, outputs, inputs_per_group = (
        result[numbers.out_spec[0]],
        kernel[numbers.rhs_spec[0]],
        kernel[numbers.rhs_spec[1]],
    )
    return 2 * pairs * batch * outputs * inputs_per_group // given["batch_group_count"]
