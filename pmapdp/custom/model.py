"""Build your model, and check before training that it and its loss fit the data.

`check_task` asks six questions, in this order:

    Does the model take the inputs, and the loss its outputs?
    Does the model have a logit for each class, or the loss return sums?
    Are the sums the same on any number of devices? (`loss.py`)
    Is the accuracy the share of right answers? (`loss.py`)
    Can the model be exported? If not, that's a warning.
    Does the loss return the metric of `--best`?
"""

import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import numpy as np
from flax import nnx

from pmapdp.custom.arrays import describe_shapes
from pmapdp.custom.data import PARTS
from pmapdp.custom.loss import (
    LINEN_ADVICE,
    call_model,
    check_correct,
    check_loss,
    infer_shapes,
)
from pmapdp.custom.map_style import check_labels
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

TRIAL_EXAMPLES = 16  # the examples with which a model and its loss are tried
# The accuracy needs more, because only a correct answer shows a mistake in it, and a
# new model has few.
ACCURACY_EXAMPLES = 64
COLOURS = (1, 3, 4)  # channels of an image: grey, red-green-blue, and transparent


def build_model(model: Callable[..., nnx.Module], seed: int, dtype: str) -> nnx.Module:
    """Build your model with `pmapdp.state.build`, and refuse what isn't one."""
    advice = (
        "give a class or function of rngs that makes a flax.nnx.Module, with its "
        "lists of layers in nnx.List; one of Linen needs flax.nnx.bridge.ToNNX"
    )
    if isinstance(model, nnx.Module):
        name = type(model).__name__
        raise UserError(
            f"the model is a {name} that is built already: give the class or function "
            f"that makes it, as in model={name}, and functools.partial({name}, "
            "width=64) if it takes arguments"
        )
    with explain_errors(
        f"{name_or_repr(model)} cannot be built", advice, YourCodeError
    ):
        network = build(model, seed, dtype)
    if not isinstance(network, nnx.Module):
        raise UserError(
            f"{name_or_repr(model)} gives {name_or_repr(network)}: {advice}"
        )
    if dtype != "float32" and not accepts(model, "dtype"):
        raise UserError(
            f"--dtype {dtype} has no effect on {name_or_repr(model)}, which takes no "
            "dtype: add dtype to its arguments and give it to its layers, or leave out "
            "--dtype"
        )
    return network


def check_task(task: Task, data: DataSet, *, custom: bool, best: str | None) -> None:
    """Refuse a model or loss that doesn't fit the data, or could break a promise.

    Args:
        task: The model and its loss.
        data: The data set, as `make_data_set` returns it.
        custom: True if the model, its loss or its metrics are yours, so that they have
            to be tried.
        best: The setting `--best`, which must name a metric.
    """
    # At first nothing is computed: JAX only looks at shapes.
    examples = read_examples(data, TRIAL_EXAMPLES)
    outputs = check_call(task, examples)
    if task.classifies:
        check_classes(task.name, outputs, examples.labels, data)
    elif not isinstance(outputs, MetricSums):
        raise UserError(
            f"the loss of {task.name} returns {describe_shapes(outputs) or outputs}: "
            "return sums over the examples, pmapdp.loss.MetricSums(loss="
            "(batch.weights * losses).sum(), correct=None, count=batch.weights.sum())"
        )
    # Built-in models and losses aren't tried here, because tests cover them.
    if custom or data.augment is not None:
        check_loss(task, examples)
        if not task.classifies and outputs.correct is not None:
            check_correct(task, read_examples(data, ACCURACY_EXAMPLES))
        warn_if_not_exportable(task, examples)
    if best is not None:
        sums = infer_shapes(task, task.loss, examples)
        check_best(best, named_sums(sums), data)


def read_examples(data: DataSet, most: int) -> Batch:
    """Read training examples from all over the data, which may be sorted by class."""
    n = min(most, data.train.num_examples)
    indices = np.linspace(0, data.train.num_examples - 1, n).astype(np.int32)
    return Batches(data.train, n).read_batch(indices)


def check_call(task: Task, examples: Batch) -> Any:
    """Check that the model takes the inputs, and the loss its outputs.

    Returns:
        The shapes of a classifier's logits, or of the sums that your loss returns.
    """
    function: Callable[..., Any] = task.loss
    if task.classifies:
        function = call_model
    try:
        return infer_shapes(task, function, examples)
    except Exception as error:
        raise explain_call(task, examples, first_line(error)) from error


def explain_call(task: Task, examples: Batch, cause: str) -> YourCodeError:
    """Make the error that says which fails, the model or its loss, and what to do."""
    try:
        outputs = infer_shapes(task, call_model, examples)
    except Exception:
        return YourCodeError(
            f"{task.name} does not take inputs {describe_shapes(examples.inputs)} "
            f"({cause}): {advise_on_inputs(task, examples.inputs)}",
            quote=cause,
        )
    return YourCodeError(
        f"the loss of {task.name} fails ({cause}): the model gives "
        f"{describe_shapes(outputs)}, the labels are "
        f"{describe_shapes(examples.labels)} and the weights "
        f"{describe_shapes(examples.weights)}; give each example one loss, for "
        "example by losses.mean(1)",
        quote=cause,
    )


def advise_on_inputs(task: Task, inputs: Any) -> str:
    """Say what to change so that a model takes its inputs."""
    modules = [module for _, module in nnx.iter_modules(task.model, graph=True)]
    if any(isinstance(module, nnx.bridge.ToNNX) for module in modules):
        return LINEN_ADVICE
    shape: Any = getattr(inputs, "shape", ())
    if len(shape) == 4 and shape[1] in COLOURS and shape[3] not in COLOURS:
        _, C, H, W = shape
        return f"Flax wants channels last, so give [n, {H}, {W}, {C}]"
    return "give inputs of its shape, or correct its __call__ or loss"


def check_classes(name: str, logits: Any, labels: Any, data: DataSet) -> None:
    """Refuse logits that aren't `[n, C]`, and labels that aren't classes below C."""
    is_matrix = getattr(logits, "ndim", 0) == 2
    are_classes = getattr(labels, "ndim", 0) == 1 and labels.dtype.kind != "f"
    if not (is_matrix and are_classes):
        raise UserError(
            "a classifier gives logits [n, C] and has whole numbers [n] as labels, but "
            f"{name} gives {describe_shapes(logits)} and the labels are "
            f"{describe_shapes(labels)}: "
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


def warn_if_not_exportable(task: Task, examples: Batch) -> None:
    """Warn before training, and not after it, if the model can't be exported."""

    def predict(model: Any, batch: Batch) -> Any:
        return getattr(model, "predict", model)(batch.inputs)

    try:
        # A batch of unknown size shows what depends on len(inputs).
        any_size = jax.export.symbolic_args_specs(examples, "batch, ...")
        infer_shapes(task, task.loss, any_size)
        infer_shapes(task, predict, any_size)
    except Exception as error:
        print(f"warning: {explain_export_error(error)}", file=sys.stderr)


def explain_export_error(error: Exception) -> str:
    """Say why a model can't be exported, and what to write."""
    return (
        f"the model cannot be exported for any number of inputs ({first_line(error)}): "
        "give it a method predict(inputs) if it takes more than inputs, and write "
        "inputs.shape[0] in place of len(inputs)"
    )


def check_best(best: str, sums: dict[str, Any], data: DataSet) -> None:
    """Refuse `--best` if its metric isn't among the sums of the loss."""
    # The metrics of this part decide which epoch is the best.
    part = data.validation or data.test or data.train
    names = {name for name in sums if not name.endswith(DIVISOR)} - {"count"}
    if "correct" in names:
        names.remove("correct")
        names.add(ACCURACIES[part.weights is not None])
    order, _, name = best.partition(":")
    if name not in names:
        raise unknown_name("--best", best, sorted(f"{order}:{name}" for name in names))
