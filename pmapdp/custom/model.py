"""Your model and loss are checked before anything is trained.

`check_task` asks, in this order: does the model take the data, does the loss return
sums, are they the same on several devices (`trial.py`), is the accuracy a share of
right answers, and can the model be exported?
"""

import contextlib
import math
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
    reason,
    shown,
    unknown,
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
    with explain_errors(f"{shown(model)} cannot be built", advice, YourCodeError):
        built = build(model, seed, dtype)
    if not isinstance(built, nnx.Module):
        raise UserError(f"{shown(model)} gives {shown(built)}: {advice}")
    if dtype != "float32" and not accepts(model, "dtype"):
        raise UserError(
            f"--dtype {dtype} has no effect on {shown(model)}, which takes no dtype: "
            "add dtype to its arguments and give it to its layers, or leave --dtype out"
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
    # Nothing is computed here: JAX only looks at shapes.
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
    function = call_model if task.classifies else task.loss
    try:
        return returned_shapes(task, function, examples)
    except Exception as error:
        failure = f"{task.name} does not take inputs {describe(examples.inputs)}"
        advice = advise_on_inputs(task, examples)
        with contextlib.suppress(Exception):
            # If the model alone takes the inputs, it's the loss that fails.
            outputs = returned_shapes(task, call_model, examples)
            failure = f"the loss of {task.name} fails"
            advice = (
                f"the model gives {describe(outputs)}, the labels are "
                f"{describe(examples.labels)} and the weights "
                f"{describe(examples.weights)}; give each example one loss, for "
                "example by losses.mean(1)"
            )
        raise YourCodeError(f"{failure} ({reason(error)}): {advice}") from error


def advise_on_inputs(task: Task, examples: Batch) -> str:
    """Say what to do if a model doesn't take its inputs."""
    for _, module in nnx.iter_modules(task.model, graph=True):
        if isinstance(module, nnx.bridge.ToNNX):
            return LINEN_ADVICE
    shape: Any = getattr(examples.inputs, "shape", ())
    if len(shape) == 4 and shape[1] in (1, 3, 4) and shape[3] not in (1, 3, 4):
        _, channels, height, width = shape
        return f"Flax wants channels last, so give [n, {height}, {width}, {channels}]"
    return "give inputs of its shape, or correct its __call__ or loss"


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
    has_one_label = getattr(examples.labels, "ndim", 0) == 1
    first = None  # example that counts, as (index, what it counts at weight 1)
    rows = zip(
        examples.indices, examples.weights, sums["correct"], sums["count"], strict=True
    )
    for index, weight, correct, count in rows:
        if count == 0 or math.isnan(correct):
            continue  # it's left out, or training says what is wrong with it
        first = first or (index, count / weight)
        is_usual = np.isclose(count / weight, first[1], rtol=1e-3)
        is_whole = np.isclose(correct, [0, count], rtol=1e-3).any()
        if has_one_label and not is_usual:
            why = f"counts {count / weight:.4g}, and example {first[0]} {first[1]:.4g}"
        elif not is_whole and (has_one_label or not 0 <= correct <= count):
            why = f"counts {count:.4g}, and adds {correct:.4g} to correct"
        else:
            continue
        raise UserError(
            f"accuracy is the share of right answers, but in the loss of {task.name} "
            f"training example {index} {why}: return correct=None, and "
            "metrics={'accuracy': ((batch.weights * right).sum(), batch.weights.sum())}"
        )


def warn_if_not_exportable(task: Task, examples: Batch) -> None:
    """Print a warning, now and not after training, if the model can't be exported."""

    def predict(model: Any, batch: Batch) -> Any:
        return getattr(model, "predict", model)(batch.inputs)

    try:
        returned_shapes(task, predict, examples)
    except Exception as error:
        print(
            "warning: the model cannot be exported, because it fails for the inputs "
            f"alone ({reason(error)}): give it a method predict(inputs)",
            file=sys.stderr,
        )
        return
    try:
        # A batch of unknown size shows what depends on len(inputs).
        any_size = jax.export.symbolic_args_specs(examples, "batch, ...")
        returned_shapes(task, task.loss, any_size)
        returned_shapes(task, predict, any_size)
    except Exception as error:
        print(f"warning: {not_exportable(error)}", file=sys.stderr)


def not_exportable(error: Exception) -> str:
    """Say why a model works for only one batch size."""
    return (
        f"the model cannot be exported for any number of inputs ({reason(error)}): "
        "use, for example, inputs.shape[0] in it instead of len(inputs)"
    )


def check_best(best: str, sums: dict[str, Any], data: DataSet) -> None:
    """Refuse `--best` of a metric that isn't among the sums of the loss."""
    # The first of these that there is decides which epoch is the best.
    for part in (data.validation, data.test, data.train):
        if part is not None:
            break
    names = {name for name in sums if not name.endswith(DIVISOR)} - {"count"}
    if "correct" in names:
        names.remove("correct")
        names.add(ACCURACIES[part.weights is not None])
    order, _, name = best.partition(":")
    if name not in names:
        raise unknown("--best", best, sorted(f"{order}:{name}" for name in names))
