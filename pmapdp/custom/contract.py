"""A model and a loss of one's own are held to their contract on a few examples, before anything is trained.

Refused is what would train something else than one device does: a loss that counts padding or is no sum over the
examples, a layer that draws random numbers of its own or writes what its own device sees. `docs/own.md` lists the
sentences.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp.custom.augmentation import traced_alike
from pmapdp.data.batches import Batch
from pmapdp.errors import UserError, shown, user_code_errors
from pmapdp.layers import Context, example_keys, use_context
from pmapdp.loss import MetricSums, named_sums
from pmapdp.state import Task, named_leaves
from pmapdp.steps.shared import AXIS


def tried(task: Task, example: Batch) -> Callable[..., tuple[MetricSums, dict[str, jax.Array]]]:
    """How a loss is tried: a function of the examples that each of two devices has, their numbers within `example` and
    how many of them count.

    It gives the sums of each, `[2]`, and what the model writes, `[2, ...]` by name. `jax.vmap` over an axis of two
    stands for the devices, as `pmap` maps over them. Both have as many rows; those that repeat others have weight 0.
    """
    structure, kept = task.constant
    params, model_state = task.arrays_of(task.model)

    def devices(train: bool, random: Any, params: Any, model_state: Any, batches: Batch) -> Any:
        before = named_leaves(model_state)

        def device(batch: Batch) -> Any:
            model = nnx.merge(structure, *jax.tree.map(jnp.asarray, (params, random, model_state)), copy=True)
            context = Context()
            if train:
                keys = example_keys(task.seed, jnp.int32(0), batch.indices)
                context = Context(batch.weights, keys, jnp.int32(0), train=True, axis_name=AXIS)
            with use_context(context):
                sums = task.loss(model, batch)
            check_fields(task, sums)
            after = named_leaves(task.arrays_of(model)[1])
            written = {name: leaf for name, leaf in after.items() if leaf is not before.get(name)}
            return sums, written

        return jax.vmap(device, axis_name=AXIS)(batches)

    compute = jax.jit(devices, static_argnums=0)  # of arguments: XLA would compute with constants as it compiles

    def run(*parts: tuple[Any, int], train: bool, random: Any = kept, first: bool = False) -> Any:
        n = len(example.indices)
        rows = np.stack([np.resize(numbers, n) for numbers, _ in parts])
        weights = np.stack([np.arange(n) < valid for _, valid in parts]).astype(np.float32)
        batches = jax.tree.map(lambda x: np.asarray(x)[rows], example)._replace(weights=weights)
        said, works = f"{task.name} fails in training", "correct its __call__, its loss or augment"
        if not train:
            said = f"the loss of {task.name}, or its metrics, fails"
            works = "return further sums as a dictionary, for example {'errors': (batch.weights * errors).sum()}"
        values = random, params, model_state, batches
        with user_code_errors(said, works):
            if first and not traced_alike(functools.partial(devices, train), *values):
                raise UserError(
                    f"{task.name} draws random numbers of NumPy or Python as JAX traces it, which would be the same in "
                    "every update, and others in a run that resumes: draw with current_context().next_keys()"
                )
            return compute(train, *values)

    return run


def check_loss(task: Task, example: Batch) -> None:
    """Hold loss and layers to their contract on a few examples, in evaluation and in training: the sums are real
    scalars; examples of weight 0 add nothing; and what two devices make of their parts of the examples is what one
    makes of all. A layer that draws random numbers of its own in training, or makes variables there, is named."""
    run, n = tried(task, example), len(example.indices)
    every, most = np.arange(n), max(1, n - 1)
    on_one, on_two = ((every, n), (every, 0)), ((every[:most], most), (every[-1:], n - most))
    for train in (False, True):
        whole, written = run(*on_one, train=train, first=train)
        check_random(task, whole.loss[0], functools.partial(run, *on_one, train=train))
        if train:
            check_variables(task, written)
        parts, written_apart = run(*on_two, train=train)
        for name, one in written.items() if train else ():
            values, apart = (np.asarray(each, np.float32) for each in (one[:1], written_apart[name]))
            if not np.allclose(values, apart, **nearly(task, train, 1.0), equal_nan=True):
                raise UserError(
                    f"{task.name} writes {name} from the rows of one device, or padding with them: weight them by the "
                    "weights of pmapdp.layers.current_context(), and add sums and counts up with jax.lax.psum over "
                    "its axis_name, unless that is None"
                )
        check_sums(task, named_sums(whole), named_sums(parts), n, train=train)


def nearly(task: Task, train: bool, size: float) -> dict[str, Any]:
    """How far rounding may move a sum of this `size`; batch norm of few examples in bfloat16 moves it most."""
    rounding = 1e-3 if task.dtype != "bfloat16" else 1e-1 if train else 2e-2
    return {"rtol": rounding, "atol": 1e-4 * max(1.0, abs(size))}


def check_fields(task: Task, sums: MetricSums) -> None:
    """Refuse sums that are no real scalars of JAX, or have a name that is taken."""
    for name in sums.others.keys() & {"loss", "count", "examples", *([] if sums.correct is None else ["accuracy"])}:
        raise UserError(f"the loss of {task.name} has a further sum called {name}, which there is: use another name")
    for field, value in {"loss": sums.loss, "count": sums.count, **named_sums(sums)}.items():
        kind = jnp.floating if field == "loss" else jnp.number
        array = isinstance(value, jax.Array)
        if not array or value.shape or not jnp.issubdtype(value.dtype, kind) or jnp.iscomplexobj(value):
            given = f"of shape {list(value.shape)}, {value.dtype}" if array else f"as {shown(value)}"
            works = "batch.weights.sum()" if field == "count" else f"(batch.weights * {field}).sum()"
            raise UserError(
                f"the loss of {task.name} returns {field} {given}: return its sum over the examples, for example "
                f"{works}"
            )


def check_sums(task: Task, whole: dict[str, Any], parts: dict[str, Any], n: int, *, train: bool) -> None:
    """Refuse sums over n examples, the first of `whole` `[2]`, that are not those of `parts` `[2]` together, or count
    examples of weight 0, of which the second of `whole` is the sum."""
    for field, both in whole.items():
        total, none, first, second = (float(each) for pair in (both, parts[field]) for each in pair)
        if not math.isfinite(total):
            continue  # training says at which step it was not

        def near(one: float, other: float, total: float = total) -> bool:
            return bool(np.allclose(one, other, **nearly(task, train, total)))

        if near(first + second, total) and near(0, none):
            continue
        so = f"the loss of {task.name}" if field == "loss" else f"{field} in the loss of {task.name}"
        so += " in training" * train
        if near(none, total):
            works = "use batch.weights.sum()" if field == "count" else "multiply by batch.weights and sum"
            raise UserError(f"{so} counts padding ({total:.4g} of weight 0): {works}")
        if near(first + second - total, none):  # what stands beside the sum stands in each part
            raise UserError(
                f"{so} has a penalty that is added once a batch ({none:.4g}), and so once a device: multiply it "
                "by batch.weights.sum()"
            )
        raise UserError(
            f"{so} is not a sum over the examples ({total:.4g} for {n} of them, {first:.4g} for all but the last, "
            f"{second:.4g} for that): let none depend on others, and return (batch.weights * losses).sum() and "
            "batch.weights.sum()"
        )


def check_variables(task: Task, written: dict[str, Any]) -> None:
    """Refuse a variable that is made in training, and was not there before."""
    if new := written.keys() - named_leaves(task.arrays_of(task.model)[1]).keys():
        raise UserError(
            f"{task.name} makes the variable {min(new)} in training: make it in __init__, or leave nnx.sow out"
        )


def check_random(task: Task, loss: Any, run: Callable[..., Any]) -> None:
    """Refuse a layer with another stream of random numbers for which `run` gives another `loss`."""
    _, random = task.constant
    for path, variable in nnx.to_flat_state(random):
        if isinstance(variable, nnx.RngKey):
            other = {tuple(each): value for each, value in nnx.to_flat_state(random)}
            other[tuple(path)] = variable.replace(
                jax.vmap(jax.random.fold_in, (0, None))(variable[...].reshape(-1), 1).reshape(variable[...].shape)
            )
            if run(random=nnx.from_flat_state(other))[0].loss[0] != loss:
                layer = ".".join(map(str, path[:-1]))
                raise UserError(
                    f"{task.name} draws random numbers from {layer} in training, which would be the same on every "
                    "device and in every update: use nnx.Dropout, or draw with current_context().next_keys()"
                )
