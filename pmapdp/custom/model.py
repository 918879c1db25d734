"""Your model and loss are checked before anything is trained.

`check_task` asks, in this order: does the model take the data, does the loss return
sums, are they the same on several devices (`trial.py`), is the accuracy a share of
right answers, and can the model be exported?
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import numpy as np
from flax import nnx

from pmapdp.custom.arrays import describe
from pmapdp.custom.data import PARTS
from pmapdp.custom.examples import check_labels
from pmapdp.custom.trial import (
    EVALUATION,
    call_model,
    check_loss,
    make_trial,
    returned_shapes,
)
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet
from pmapdp.errors import (
    UserError,
    YourCodeError,
    explain_errors,
    first_line,
    name_or_repr,
    unknown_name,
)
from pmapdp.loss import DIVISOR, MetricSums, named_sums
from pmapdp.metrics import ACCURACIES
from pmapdp.state import Task, accepts, build

ROWS = 16  # examples with which a model and its loss are tried
MORE_ROWS = 64  # and the accuracy, of which a wrong example shows nothing
LINEN_ADVICE = (
    "of Linen, nnx.bridge.ToNNX brings layers without random numbers and statistics: "
    "replace dropout and batch norm by flax.nnx's"
)


def build_model(model: Callable[..., nnx.Module], seed: int, dtype: str) -> nnx.Module:
    """Build your model as `pmapdp.state.build` does."""
    advice = (
        "give a class or function of rngs that makes a flax.nnx.Module; one of Linen "
        "needs flax.nnx.bridge.ToNNX"
    )
    with explain_errors(
        f"{name_or_repr(model)} cannot be built", advice, YourCodeError
    ):
        built = build(model, seed, dtype)
    if not isinstance(built, nnx.Module):
        raise UserError(f"{name_or_repr(model)} gives {name_or_repr(built)}: {advice}")
    if dtype != "float32" and not accepts(model, "dtype"):
        raise UserError(
            f"--dtype {dtype} has no effect on {name_or_repr(model)}, which takes no "
            "dtype: add dtype to its arguments and give it to its layers, or leave "
            "--dtype out"
        )
    return built


def check_task(task: Task, data: DataSet, *, custom: bool, best: str | None) -> None:
    """Refuse a model or loss that doesn't fit the data, or could break a promise.

    Args:
        task: The model and its loss.
        data: In arrays.
        custom: The model, its loss or its metrics are yours, so they're tried.
        best: The setting `--best`, which must name a metric.
    """
    # At first nothing is computed: JAX only looks at shapes.
    examples = read_examples(data, ROWS)
    returned = check_call(task, examples)
    if task.classifies:
        check_classes(task.name, returned, examples.labels, data)
    elif not isinstance(returned, MetricSums):
        raise UserError(
            f"the loss of {task.name} returns {describe(returned) or returned}: return "
            "sums over the examples, pmapdp.loss.MetricSums(loss=(batch.weights * "
            "losses).sum(), correct=None, count=batch.weights.sum())"
        )
    # Our own networks and losses are tested, so they start without a trial.
    if custom or data.augment is not None:
        check_loss(task, examples)
        if not task.classifies and returned.correct is not None:
            check_correct(task, read_examples(data, MORE_ROWS))
        warn_if_not_exportable(task, examples)
    if best is not None:
        sums = returned_shapes(task, task.loss, examples)
        check_best(best, named_sums(sums), data)


def read_examples(data: DataSet, most: int) -> Batch:
    """Read training examples from all over the data, which may be sorted by class."""
    n = min(most, data.train.examples)
    indices = np.linspace(0, data.train.examples - 1, n).astype(np.int32)
    return Batches(data.train, n).read_batch(indices)


def check_call(task: Task, examples: Batch) -> Any:
    """Check that the model takes the inputs, and the loss its outputs.

    Returns:
        Shapes of a classifier's logits, or of what your loss returns.
    """
    try:
        if task.classifies:
            return returned_shapes(task, call_model, examples)
        return returned_shapes(task, task.loss, examples)
    except Exception as error:
        failure, advice = explain_call(task, examples)
        raise YourCodeError(f"{failure} ({first_line(error)}): {advice}") from error


def explain_call(task: Task, examples: Batch) -> tuple[str, str]:
    """Say if the model fails or its loss, and what to do."""
    inputs = examples.inputs
    try:
        outputs = returned_shapes(task, call_model, examples)
    except Exception:
        modules = [module for _, module in nnx.iter_modules(task.model, graph=True)]
        advice = "give inputs of its shape, or correct its __call__ or loss"
        shape: Any = getattr(inputs, "shape", ())
        if len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4):
            _, C, H, W = shape
            advice = f"Flax wants channels last, so give [n, {H}, {W}, {C}]"
        if any(isinstance(module, nnx.bridge.ToNNX) for module in modules):
            advice = LINEN_ADVICE
        return f"{task.name} does not take inputs {describe(inputs)}", advice
    return f"the loss of {task.name} fails", (
        f"the model gives {describe(outputs)}, the labels are "
        f"{describe(examples.labels)} and the weights {describe(examples.weights)}; "
        "give each example one loss, for example by losses.mean(1)"
    )


def check_classes(name: str, logits: Any, labels: Any, data: DataSet) -> None:
    """Refuse logits that no classifier gives, and labels that aren't its classes."""
    is_matrix = getattr(logits, "ndim", 0) == 2
    are_classes = getattr(labels, "ndim", 0) == 1 and labels.dtype.kind != "f"
    if not (is_matrix and are_classes):
        raise UserError(
            "a classifier gives logits [n, C] and has whole numbers [n] as labels, but "
            f"{name} gives {describe(logits)} and the labels are {describe(labels)}: "
            "of one-hot rows give labels.argmax(1), of a column labels[:, 0], of whole "
            "floats labels.astype('int32'), and for other labels a loss of your own"
        )
    C = logits.shape[1]
    if data.classes and len(data.classes) != C:
        raise UserError(
            f"the data name {len(data.classes)} classes, and {name} has {C} logits: "
            "name all of them in their order, DataSet(..., classes=(...)), or none"
        )
    for part_name, part in data.parts.items():
        check_labels(PARTS[part_name], part, C)


def check_correct(task: Task, examples: Batch) -> None:
    """Check that accuracy is the share of right answers.

    So an example is right or wrong, and counts as the data say. If its labels have more
    axes, as tokens have, it may be right in part.
    """
    # One example on each of 64 simulated devices.
    alone = jax.tree.map(lambda rows: rows[:, None], examples)
    sums, _ = make_trial(task, EVALUATION, alone)(alone)
    counts = sums["count"] / examples.weights  # what an example counts at weight 1
    with np.errstate(invalid="ignore"):
        shares = sums["correct"] / sums["count"]  # NaN for one that is left out
    first = np.argmax(counts > 0)
    if getattr(examples.labels, "ndim", 0) == 1:
        has_own_weight = ~np.isclose(counts, counts[first], rtol=1e-3)
        is_partial = ~np.isclose(shares, shares >= 0.5, rtol=1e-3)
    else:
        has_own_weight = np.zeros(len(counts), bool)
        is_partial = (shares < 0) | (shares > 1)
    wrong = np.flatnonzero((has_own_weight | is_partial) & np.isfinite(shares))
    if not wrong.size:
        return
    row = wrong[0]
    contrast = f"adds {sums['correct'][row]:.4g} to correct"
    if has_own_weight[row]:
        contrast = f"example {examples.indices[first]} {counts[first]:.4g}"
    raise UserError(
        f"accuracy is the share of right answers, but in the loss of {task.name} "
        f"training example {examples.indices[row]} counts {counts[row]:.4g}, and "
        f"{contrast}: return correct=None, and "
        "metrics={'accuracy': ((batch.weights * right).sum(), batch.weights.sum())}"
    )


def warn_if_not_exportable(task: Task, examples: Batch) -> None:
    """Print a warning, now and not after training, if the model can't be exported."""

    def predict(model: Any, batch: Batch) -> Any:
        return getattr(model, "predict", model)(batch.inputs)

    try:
        # A batch of unknown size shows what depends on len(inputs).
        any_size = jax.export.symbolic_args_specs(examples, "batch, ...")
        returned_shapes(task, task.loss, any_size)
        returned_shapes(task, predict, any_size)
    except Exception as error:
        print(f"warning: {not_exportable(error)}", file=sys.stderr)


def not_exportable(error: Exception) -> str:
    """Say why a model can't be exported, and what to write."""
    return (
        f"the model cannot be exported for any number of inputs ({first_line(error)}): "
        "give it a method predict(inputs) if it takes more than inputs, and write "
        "inputs.shape[0] in place of len(inputs)"
    )


def check_best(best: str, sums: dict[str, Any], data: DataSet) -> None:
    """Refuse `--best` of a metric that isn't among the sums of the loss."""
    # The metrics of this part decide which epoch is the best.
    part = data.validation or data.test or data.train
    names = {name for name in sums if not name.endswith(DIVISOR)} - {"count"}
    if "correct" in names:
        names.remove("correct")
        names.add(ACCURACIES[part.weights is not None])
    order, _, name = best.partition(":")
    if name not in names:
        raise unknown_name("--best", best, sorted(f"{order}:{name}" for name in names))
