"""Training steps compiled for any number of devices from shapes alone, and their operations counted by hand."""

from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.scaling.workloads import EXAMPLES, batch_shapes
from pmapdp.state import Task, initial_state
from pmapdp.steps import make_steps

IMAGE = EXAMPLES["images"]


def step_shapes(
    strategy: str, task: Task, devices: list[jax.Device], per_device_batch: int, example: jax.ShapeDtypeStruct = IMAGE
) -> tuple[Any, Any]:
    """State and batch of a training step as `jax.ShapeDtypeStruct`s, placed as `strategy` places them."""
    N, b = len(devices), per_device_batch
    state = jax.eval_shape(lambda: initial_state(task))
    rows = (N, b) if strategy == "pmap" else (N * b,)
    batch = batch_shapes(rows, example)
    if strategy == "single":
        return state, batch
    mesh = Mesh(np.array(devices), ("data",))

    def placed(tree: Any, spec: PartitionSpec) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    return placed(state, PartitionSpec()), placed(batch, PartitionSpec("data"))


def compile_step(
    strategy: str, task: Task, devices: list[jax.Device], per_device_batch: int, example: jax.ShapeDtypeStruct = IMAGE
) -> Any:
    """The compiled training step (`jax.stages.Compiled`) of `strategy` on `devices`, of which nothing is run."""
    train_step: Any = make_steps(strategy, task, devices).train_step
    return train_step.lower(*step_shapes(strategy, task, devices, per_device_batch, example)).compile()


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
