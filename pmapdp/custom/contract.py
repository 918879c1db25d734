"""Your model and loss are tried on a few examples before training, so that a run on N devices can't differ from one.

Refused are a loss that counts padding or is no sum over the examples, and a layer that draws random numbers of its own
or writes what its own device sees. `docs/custom.md` lists the sentences.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp.custom.data import describe
from pmapdp.data.batches import Batch
from pmapdp.errors import UserError, shown, user_code_errors
from pmapdp.layers import Context, example_keys, use_context
from pmapdp.loss import MetricSums, named_sums
from pmapdp.state import Task, named_leaves
from pmapdp.steps.shared import AXIS


def check_loss(task: Task, example: Batch) -> None:
    """Try loss and layers on a batch of n examples, in evaluation and in training, on three simulated devices.

    The sums must be the same if one device has all examples and if two have half of them, and padding, which the others
    have, must add nothing.
    """
    n = len(example.indices)
    rows, weights = np.zeros((2, 3, n), np.int32), np.zeros((2, 3, n), np.float32)  # padding is copies of example 0
    rows[0], weights[0, 0] = range(n), 1
    for device, half in enumerate(np.array_split(np.arange(n), 2)):
        rows[1, device, : len(half)], weights[1, device, : len(half)] = half, 1
    together, in_halves = (
        jax.tree.map(lambda x, i=i: np.asarray(x)[rows[i]], example)._replace(weights=weights[i]) for i in (0, 1)
    )
    for train in (False, True):
        run = make_trial(task, together, train)
        whole, written = run(together)
        check_streams(task, partial(run, together), whole["loss"])
        if new := written.keys() - named_leaves(task.arrays_of(task.model)[1]).keys():
            raise UserError(
                f"{task.name} makes the variable {min(new)} as it is called: make it in __init__, or leave nnx.sow out"
            )
        apart, written_apart = run(in_halves)
        for name, values in written.items() if train else ():
            if not np.allclose(written_apart[name], values[:1], **tolerance(task, train), equal_nan=True):
                raise UserError(
                    f"{task.name} writes {name} from the rows of one device, or padding with them: weight them by the "
                    "weights of pmapdp.layers.current_context(), and add sums and counts up with jax.lax.psum over "
                    "its axis_name, unless that is None"
                )
        for name in sorted(whole, key=lambda name: name != "loss"):  # the loss first
            total, padding, _ = map(float, whole[name])
            check_sum(task, name, total, padding, apart[name], train=train)


def make_trial(task: Task, batches: Batch, train: bool) -> Callable[..., tuple[dict[str, Any], dict[str, Any]]]:
    """Return a function that calls the loss on each simulated device: `jax.vmap` over a named axis, as `pmap` maps.

    From batches `[devices, b, ...]` it returns the sums, and what the model writes, by name, `[devices, ...]` each.
    """
    structure, constant_streams = task.constant
    arrays = task.arrays_of(task.model)

    def device(params: Any, model_state: Any, streams: Any, batch: Batch) -> Any:
        model = nnx.merge(structure, *jax.tree.map(jnp.asarray, (params, streams, model_state)), copy=True)
        context = Context()
        if train:
            keys = example_keys(task.seed, jnp.int32(0), batch.indices)
            context = Context(batch.weights, keys, jnp.int32(0), train=True, axis_name=AXIS)
        with use_context(context):
            sums = task.loss(model, batch)
        check_fields(task, sums)
        before, after = named_leaves(model_state), named_leaves(task.arrays_of(model)[1])
        return named_sums(sums), {name: leaf for name, leaf in after.items() if leaf is not before.get(name)}

    def trace() -> Any:
        devices = jax.vmap(device, (None, None, None, 0), axis_name=AXIS)
        return jax.jit(lambda *values: devices(*values)).trace(*arrays, constant_streams, batches)  # each time anew

    with user_code_errors(
        f"{task.name} fails in {'training' if train else 'evaluation'}",
        "correct its __call__, its loss, metrics= or augment=",
    ):
        traced = trace()
        if train and content(traced.jaxpr) != content(trace().jaxpr):
            raise UserError(
                f"{task.name} draws random numbers of NumPy or Python as JAX traces it, which would be the same in "
                "every update, and others in a run that resumes: draw with current_context().next_keys()"
            )
        compute = traced.lower().compile()

    def run(batches: Batch, streams: Any = constant_streams) -> Any:
        with jax.debug_nans(False):  # training finds where a NaN comes from
            return jax.device_get(compute(*arrays, streams, batches))

    return run


def content(traced: Any) -> tuple[str, list[bytes]]:
    """Return a traced program, without addresses of functions, and its constants."""
    return re.sub("0x[0-9a-f]+", "", str(traced.jaxpr)), [np.asarray(each).tobytes() for each in traced.consts]


def check_fields(task: Task, sums: MetricSums) -> None:
    """Refuse sums that are no real scalars of JAX, or have a name that is taken."""
    for name in sums.others.keys() & {"loss", "count", "examples", *([] if sums.correct is None else ["accuracy"])}:
        raise UserError(f"the loss of {task.name} has a further sum called {name}, which there is: use another name")
    for name, value in ({"loss": sums.loss, "count": sums.count} | named_sums(sums)).items():
        real = jnp.floating if name == "loss" else jnp.number
        if not isinstance(value, jax.Array) or value.shape or not jnp.issubdtype(value.dtype, real):
            given = describe(value) if isinstance(value, jax.Array) else shown(value)
            each = "batch.weights" if name == "count" else f"(batch.weights * {name})"
            raise UserError(
                f"the loss of {task.name} returns {name} as {given}: return its sum over the examples, for example "
                f"{each}.sum()"
            )


def tolerance(task: Task, train: bool, size: float = 1.0) -> dict[str, Any]:
    """Return how far rounding may move a sum of this `size`; batch norm of few examples in bfloat16 moves it most."""
    rounding = 1e-3 if task.dtype != "bfloat16" else 1e-1 if train else 2e-2
    return {"rtol": rounding, "atol": 1e-4 * max(1.0, abs(size))}


def check_sum(task: Task, name: str, total: float, padding: float, apart: np.ndarray, *, train: bool) -> None:
    """Refuse a sum that devices with some examples each, `apart` `[devices]`, don't add up to, or that padding changes.

    `total` is the sum of one device with all examples, and `padding` the same if they have weight 0.
    """
    near, added = partial(np.isclose, **tolerance(task, train, total)), float(apart.sum())
    if not math.isfinite(total) or (near(added, total) and near(padding, 0)):  # training names a step that isn't finite
        return
    what = f"the loss of {task.name}" if name == "loss" else f"{name} in the loss of {task.name}"
    what += " in training" if train else ""
    if near(padding, total) and not near(padding, 0):
        works = "use batch.weights.sum()" if name == "count" else "multiply by batch.weights and sum"
        raise UserError(f"{what} counts padding ({total:.4g} of weight 0): {works}")
    if near(added - total, (len(apart) - 1) * padding):  # it is there once on one device, and n times on n
        raise UserError(
            f"{what} has a penalty that is added once a batch ({padding:.4g}), and so once a device: multiply it by "
            "batch.weights.sum()"
        )
    raise UserError(
        f"{what} is not a sum over the examples ({total:.4g} for all of them, {added:.4g} for two halves): let none "
        "depend on others, and return (batch.weights * losses).sum() and batch.weights.sum()"
    )


def check_correct(task: Task, examples: Batch) -> None:
    """Refuse an accuracy with other weights than its count: an example is right or wrong as a whole.

    With labels of more than one axis, for example of tokens, it may be right in part. A wrong example shows nothing, so
    this takes more of them than `check_loss`.
    """
    label_axes, alone = getattr(examples.labels, "ndim", 0), jax.tree.map(lambda x: x[:, None], examples)
    sums, _ = make_trial(task, alone, train=False)(alone)
    for correct, count in zip(sums["correct"].tolist(), sums["count"].tolist(), strict=True):
        is_whole = np.isclose(correct, [0, count], rtol=1e-3).any() or math.isnan(correct)
        if not is_whole and not (label_axes != 1 and 0 < correct < count):
            raise UserError(
                f"the loss of {task.name} returns correct {correct:.4g} for an example that counts {count:.4g}, so "
                "its accuracy would be wrong: give both the same weights, (weights * right).sum() and weights.sum(), "
                "or return the plain one under another name"
            )


def check_streams(task: Task, run: Callable[..., Any], losses: np.ndarray) -> None:
    """Refuse a layer whose own stream of random numbers changes the losses."""
    streams = nnx.to_flat_state(task.constant[1])
    for path, variable in streams:
        if isinstance(variable, nnx.RngKey):
            keys = jax.vmap(jax.random.fold_in, (0, None))(variable[...].reshape(-1), 1).reshape(variable[...].shape)
            others = {tuple(each): variable.replace(keys) if each == path else value for each, value in streams}
            if run(streams=nnx.from_flat_state(others))[0]["loss"][0] != losses[0]:
                raise UserError(
                    f"{task.name} draws random numbers from {'.'.join(map(str, path[:-1]))}, which would be the same "
                    "on every device and in every update: use nnx.Dropout, or current_context().next_keys()"
                )
