"""Check that your loss of all examples is the sum of the losses of both halves.

`check_loss` lays n examples out over two simulated devices (`jax.vmap` over a named
axis), in two ways:

    whole     the first device has all of them, the second one only padding
    halves    each device has one half, and padding

Each device returns its sums, and the two devices' sums are added up. If the loss is a
sum over examples, whole and halves give the same total, and the device that has only
padding adds 0. A mean, for example, gives another total, so the loss would depend on
the number of devices. What layers write, such as running statistics, must be the same
in both layouts too.

`check_correct` gives each example a device of its own, and looks at its accuracy.
"""

import contextlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp.custom.arrays import describe_shapes
from pmapdp.data.batches import Batch
from pmapdp.errors import UserError, YourCodeError, explain_errors, name_or_repr
from pmapdp.layers import Context, freeze_batch_norms, use_context
from pmapdp.loss import MetricSums, named_sums
from pmapdp.metrics import ACCURACIES
from pmapdp.state import Task, named_leaves
from pmapdp.steps.shared import AXIS, training_context

# The modes in which a loss is called. Messages name them.
TRAINING = "training"
EVALUATION = "evaluation"
# Training with --accumulate: each device plays a micro-batch, without collectives.
MICRO_BATCHES = "micro-batches"
# Another order of additions moves a sum by at most this fraction.
ROUNDING = 1e-3
BFLOAT16_ROUNDING = {TRAINING: 0.1, MICRO_BATCHES: 0.1, EVALUATION: 0.02}
# What a layer writes in bfloat16 may be off by this fraction of the array's largest
# number. The running means of a ResNet-18 were off by up to 0.005 of it. Most of them
# are near 0, so a fraction of each mean would be too little.
WRITTEN_ROUNDING = 0.02
LINEN_ADVICE = (
    "of Linen, nnx.bridge.ToNNX brings layers without random numbers and statistics: "
    "replace dropout and batch norm by flax.nnx's"
)


# The experiments


def check_loss(task: Task, examples: Batch) -> None:
    """Check that whole and halves add up to the same, and that padding adds 0."""
    all_rows = np.arange(len(examples.indices))
    no_rows = all_rows[:0]
    whole = split_over_devices(examples, all_rows, no_rows)
    halves = split_over_devices(examples, *np.array_split(all_rows, 2))
    modes = [TRAINING, EVALUATION]
    if task.accumulate > 1:
        modes.append(MICRO_BATCHES)
    for mode in modes:
        compute = compile_sums(task, mode, whole)
        sums_of_whole, written_by_whole = compute(whole)
        sums_of_halves, written_by_halves = compute(halves)
        check_streams(task, compute, whole, sums_of_whole["loss"])
        # An evaluation keeps nothing that layers write, and a micro-batch sees only its
        # own examples.
        if mode == TRAINING:
            check_written(task, written_by_whole, written_by_halves)
        # The loss first, because its message says most.
        for name in ("loss", *sums_of_whole):
            whole_sums = sums_of_whole[name]
            check_sum(task, mode, examples, name, whole_sums, sums_of_halves[name])


def split_over_devices(examples: Batch, *parts: np.ndarray) -> Batch:
    """Give each device its part of the n rows: a batch `[devices, n, ...]`, padded."""
    # Parts of any length have one shape, so one compiled program serves both layouts.
    rows = np.zeros((len(parts), len(examples.indices)), int)
    weights = np.zeros(rows.shape, np.float32)
    for device, part in enumerate(parts):
        # Padding repeats the part's last example, so no device sees the other's half.
        rows[device] = part.max(initial=0)
        rows[device, : len(part)] = part
        weights[device, : len(part)] = 1
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], examples)
    return batch._replace(weights=weights)


def check_correct(task: Task, examples: Batch) -> None:
    """Check that accuracy is the share of right answers.

    Each example must be right or wrong, and count with the weight that the data give
    it. If its labels have more axes, as tokens have, it may be right in part.
    """
    one_each = jax.tree.map(lambda rows: rows[:, None], examples)  # [devices, 1, ...]
    sums, _ = compile_sums(task, EVALUATION, one_each)(one_each)
    counts = sums["count"] / examples.weights  # what an example counts at weight 1
    with np.errstate(invalid="ignore"):
        shares = sums["correct"] / sums["count"]  # NaN for one that is left out
    first = np.argmax(counts > 0)
    if getattr(examples.labels, "ndim", 0) == 1:
        has_own_weight = ~np.isclose(counts, counts[first], rtol=1e-3)
        is_no_share = ~np.isclose(shares, shares >= 0.5, rtol=1e-3)  # not 0, not 1
    else:
        # Texts may differ in the number of tokens that count.
        has_own_weight = np.zeros(len(counts), bool)
        is_no_share = (shares < 0) | (shares > 1)
    wrong = np.flatnonzero((has_own_weight | is_no_share) & np.isfinite(shares))
    if not wrong.size:
        return
    row = wrong[0]
    mistake = f"training example {examples.indices[row]} counts {counts[row]:.4g}, and "
    if has_own_weight[row]:
        mistake += f"example {examples.indices[first]} {counts[first]:.4g}"
    else:
        mistake += f"adds {sums['correct'][row]:.4g} to correct"
    raise UserError(
        "accuracy is the share of right answers, but in the loss of "
        f"{task.name} {mistake}: return correct=None, and "
        "metrics={'accuracy': ((batch.weights * right).sum(), batch.weights.sum())}"
    )


# The simulated devices


def compile_sums(task: Task, mode: str, batches: Batch) -> Callable[..., Any]:
    """Compile the loss for simulated devices, which get batches `[devices, b, ...]`.

    Returns:
        A function of such batches, and perhaps other random streams. It returns the
        loss's sums and what the model writes, by name, each `[devices, ...]`.

    Raises:
        UserError: Model or loss fails, or draws random numbers of NumPy.
    """
    _, streams = task.graph_and_streams
    params, model_state = task.split_arrays(task.model)

    def trace() -> Any:
        on_device = partial(compute_sums, task, mode)
        on_devices = jax.vmap(on_device, (None, None, None, 0), axis_name=AXIS)
        return jax.jit(on_devices).lower(params, model_state, streams, batches)

    advice = "correct its __call__, its loss, metrics= or augment="
    with explain_errors(f"{task.name} fails in {mode}", advice, YourCodeError):
        program = trace()
        # A random number of NumPy's is a constant of the program, and another one in
        # the next program.
        if mode == TRAINING and program.as_text() != trace().as_text():
            raise UserError(
                f"{task.name} draws random numbers of NumPy or Python as JAX traces "
                "it, the same for every update: draw with current_context().next_keys()"
            )
        compiled = program.compile()

    def compute(batches: Batch, streams: Any = streams) -> Any:
        with jax.debug_nans(False):  # training finds where a NaN comes from
            return jax.device_get(compiled(params, model_state, streams, batches))

    return compute


def compute_sums(
    task: Task, mode: str, params: Any, model_state: Any, streams: Any, batch: Batch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a device's sums, and the variables that its layers write, by name."""
    structure, _ = task.graph_and_streams
    # A copy, because layers write into it.
    model = nnx.merge(structure, params, streams, model_state, copy=True)
    context = Context()
    if mode == TRAINING:
        context = training_context(task, jnp.int32(0), batch, AXIS)
    elif mode == MICRO_BATCHES:
        context = training_context(task, jnp.int32(0), batch, None)
        # A micro-batch has moments of its own, as docs/custom_reference.md says.
        freeze_batch_norms(model, nnx.Nothing())
    with use_context(context), jax.default_matmul_precision("highest"):  # no TF32
        sums = task.loss_sums(model, batch)
    check_fields(task, sums)
    # A layer that assigns to a variable leaves another array in it.
    before = named_leaves(model_state)
    after = named_leaves(task.split_arrays(model)[1])
    written = {
        name: leaf for name, leaf in after.items() if leaf is not before.get(name)
    }
    return named_sums(sums), written


def check_fields(task: Task, sums: MetricSums) -> None:
    """Check that sums are real scalars of JAX, and that their names are free."""
    reserved = {"loss", "count", "correct", "examples"}
    if sums.correct is not None:
        reserved.update(ACCURACIES)
    for name in sums.metrics.keys() & reserved:
        raise UserError(
            f"the loss of {task.name} has a metric called {name}, which there is "
            "already: use another name"
        )
    for name, value in named_sums(sums).items():
        if not isinstance(value, jax.Array):
            result = name_or_repr(value)
        elif value.shape:
            result = describe_shapes(value)
        else:
            continue
        raise UserError(
            f"the loss of {task.name} returns {name} as {result}: return its sum "
            f"over examples, (batch.weights * {name}).sum()"
        )


# The checks of their results


def check_streams(
    task: Task, compute: Callable[..., Any], batches: Batch, losses: np.ndarray
) -> None:
    """Refuse a layer whose own stream of random numbers changes the loss."""
    streams = dict(nnx.to_flat_state(task.graph_and_streams[1]))
    # Layers may draw from a stream, as nnx.RNN does, if the loss stays the same.
    for path, variable in streams.items():
        if not isinstance(variable, nnx.RngKey):
            continue
        keys = jax.random.split(jax.random.key(task.seed + 1), variable.shape)
        changed = streams | {path: variable.replace(keys)}
        sums, _ = compute(batches, nnx.from_flat_state(changed))
        if not np.array_equal(sums["loss"], losses, equal_nan=True):
            source = f"from {'.'.join(map(str, path[:-1]))}"
            advice = "use nnx.Dropout, or current_context().next_keys()"
            if is_of_linen(task.model, path):
                source = "in a layer of Linen"
                advice = LINEN_ADVICE
            raise UserError(
                f"{task.name} draws random numbers {source}, which would be the same "
                f"on every device and in every update: {advice}"
            )


def is_of_linen(model: nnx.Module, path: tuple[Any, ...]) -> bool:
    """Return True if the variable at this path belongs to a bridged Linen module."""
    for module_path, module in nnx.iter_modules(model, graph=True):
        is_bridge = isinstance(module, nnx.bridge.ToNNX)
        if is_bridge and path[: len(module_path)] == module_path:
            return True
    return False


def check_written(task: Task, by_whole: Any, by_halves: Any) -> None:
    """Check that layers write variables that they have, and from all examples.

    Args:
        task: The model and its loss.
        by_whole: What the devices wrote in the layout `whole`, by variable.
        by_halves: What they wrote in the layout `halves`.
    """
    variables = named_leaves(task.split_arrays(task.model)[1])
    for name, values in by_whole.items():
        if name not in variables:
            raise UserError(
                f"{task.name} makes the variable {name} as it is called: make it in "
                "__init__, or leave nnx.sow out"
            )
        expected = values[:1]  # of the device that has all examples
        smallest = 1e-4
        if task.dtype == "bfloat16":
            smallest = max(smallest, WRITTEN_ROUNDING * np.abs(expected).max(initial=0))
        # Every device must hold it, because each keeps a replica.
        if not np.allclose(
            by_halves[name],
            expected,
            relative_rounding(task, TRAINING),
            smallest,
            equal_nan=True,
        ):
            raise UserError(
                f"{task.name} writes {name} from the rows of one device, or padding "
                "with them: weight them by the weights of "
                "pmapdp.layers.current_context(), and add sums and counts up with "
                "jax.lax.psum over its axis_name, unless that is None"
            )


def relative_rounding(task: Task, mode: str) -> float:
    """Return the fraction by which rounding may move a result in this mode."""
    if task.dtype == "bfloat16":
        return BFLOAT16_ROUNDING[mode]
    return ROUNDING


def check_sum(
    task: Task,
    mode: str,
    examples: Batch,
    name: str,
    whole: np.ndarray,
    halves: np.ndarray,
) -> None:
    """Check that the halves add up to the whole, and that padding adds 0.

    Args:
        task: The model and its loss.
        mode: The mode in which the loss was called.
        examples: The examples of the experiment.
        name: The name of the sum, as in `named_sums`.
        whole: The sums of two devices, `[2]`. The second has only padding.
        halves: The sums of two devices, `[2]`, which have one half each.
    """
    total, of_padding = whole.tolist()
    of_halves = float(halves.sum())
    is_near = partial(
        np.isclose,
        rtol=relative_rounding(task, mode),
        atol=1e-4 * max(1.0, abs(total)),
    )
    if is_near(of_padding, 0) and is_near(of_halves, total):
        return
    if not math.isfinite(total):
        return  # training says which example it is
    is_sum_of_losses = name in ("loss", "count")
    if task.dtype == "bfloat16" and mode != EVALUATION and not is_sum_of_losses:
        return  # rounding may change the class of an example
    quantity = f"the loss of {task.name} in {mode}"
    if name != "loss":
        quantity = f"{name} in {quantity}"
    # Padding alone gives the whole sum, so the weights are ignored.
    if is_near(of_padding, total):
        raise UserError(
            f"{quantity} counts padding ({total:.4g} of weight 0): multiply by "
            "batch.weights and sum; the count is batch.weights.sum()"
        )
    # A penalty is there once in the total, and twice in the two halves.
    if is_near(of_padding, of_halves - total):
        raise UserError(
            f"{quantity} has a penalty that is added once a batch ({of_padding:.4g}), "
            "and so once a device: multiply it by batch.weights.sum()"
        )
    raise UserError(
        f"{quantity} is not a sum over the examples ({total:.4g} for all of them, "
        f"{of_halves:.4g} for two halves): {advise_on_sum(task, mode, examples)}"
    )


def advise_on_sum(task: Task, mode: str, examples: Batch) -> str:
    """Say how a loss becomes a sum over the examples."""
    if mode == EVALUATION:  # in training it's a sum
        return (
            "in evaluation axis_name is None, so use a loss of single examples there, "
            "unless current_context().train"
        )
    if mode == MICRO_BATCHES:
        return (
            f"with --accumulate {task.accumulate} it compares only the examples of one "
            "micro-batch, so leave --accumulate out"
        )
    labels = examples.labels
    # A loss may call the model in another way, which this call doesn't fit.
    with contextlib.suppress(Exception):
        outputs = infer_shapes(task, call_model, examples)
        if outputs.size == labels.size and outputs.shape != labels.shape:
            return (
                f"the model gives {describe_shapes(outputs)} and the labels are "
                f"{describe_shapes(labels)}, so give both one shape, for example by "
                "model(batch.inputs)[:, 0]"
            )
    return (
        "let none depend on others, or gather the batch as docs/custom_reference.md in "
        "pmapdp's repository does, and return (batch.weights * losses).sum() and "
        "batch.weights.sum()"
    )


# Shapes, for which nothing is computed


def call_model(model: Any, batch: Batch) -> Any:
    """Return the outputs of a model for the inputs of a batch."""
    return model(batch.inputs)


def infer_shapes(task: Task, function: Callable[[Any, Any], Any], batch: Any) -> Any:
    """Return types and shapes of what a function of model and batch returns."""

    def call(params: Any, model_state: Any, batch: Any) -> Any:
        return function(task.merge_arrays(params, model_state), batch)

    return jax.eval_shape(call, *task.split_arrays(task.model), batch)
