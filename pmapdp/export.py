"""Write the trained model of a run to one file.

    python -m pmapdp.export runs/first model.zip         # its newest checkpoint
    python -m pmapdp.export runs/first model.zip --best  # its best epoch
    python -m pmapdp.export runs/texts model.zip --data-dir data

The file holds a program, so whoever opens it has to trust you. docs/export.md in
pmapdp's repository says what else is in it, and how JAX, NumPy and flatbuffers read it
without this package.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp import __version__, cli, flags
from pmapdp.config import setting
from pmapdp.custom.data import fingerprint, make_data_set
from pmapdp.custom.model import explain_export_error
from pmapdp.data.batches import Batch
from pmapdp.data.dataset import Split
from pmapdp.errors import UserError, YourCodeError, explain_errors
from pmapdp.exported_file import (
    FEATURIZER,
    LOSS,
    PROGRAM,
    ExportedFile,
    read_exported_file,
    write_exported_file,
)
from pmapdp.files import MODEL_SIGNATURES, check_output
from pmapdp.job import CustomParts, rebuild_task
from pmapdp.loss import MetricSums, named_sums
from pmapdp.registry import (
    FEATURIZERS,
    PYTHON_DATA,
    featurize,
    load_data,
    parts_from_python,
    require_python_values,
)
from pmapdp.run.saved_run import load_state
from pmapdp.run.workdir import read_config
from pmapdp.state import Task, TrainState

PLATFORMS = ("cpu", "cuda", "tpu")
ADVICE = "name a file that python -m pmapdp.export wrote"


@dataclass(frozen=True)
class Exported:
    """An exported model runs with its method `outputs(inputs)`.

    Attributes:
        metadata: The contents of `metadata.json`: `labels`, `metrics`, `input` (shapes
            and types), `classifies` and more.
        model: The network, a function of the arrays and the inputs.
        arrays: The parameters and running statistics.
        loss: A function of the arrays, inputs, labels and weights that returns the sums
            of loss and metrics.
        featurizer: A function that turns n texts into the inputs of a text model.
    """

    metadata: dict[str, Any]
    model: jax.export.Exported
    arrays: dict[str, np.ndarray]
    loss: jax.export.Exported
    featurizer: Any = None

    @cached_property
    def compiled(self) -> Any:
        """Return the network, compiled once for every number of inputs."""
        return jax.jit(self.model.call)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which JAX computes in the model's type, float64 too."""
        return jax.enable_x64(self.metadata["dtype"] == "float64")

    def outputs(self, inputs: Any) -> dict[str, np.ndarray]:
        """Return the model's outputs for n inputs, at least one.

        A classifier gives `logits` and `probabilities`, both `[n, C]`. Any other model
        gives its `outputs`, `[n, ...]`. A `UserError` says that the model takes other
        inputs, or answers with NaN.
        """
        check_inputs(self.metadata, inputs)
        with self.precision():
            outputs = jax.device_get(self.compiled(self.arrays, inputs))
        for output in outputs.values():
            if not np.isfinite(output).all():
                raise UserError(
                    "the model answers with nan or infinity: "
                    "train it again with a lower --learning-rate"
                )
        return outputs


def input_types(inputs: Any) -> Any:
    """Return type and shape of each array of a batch, as in `metadata["input"]`."""
    return jax.tree.map(
        lambda x: {"dtype": x.dtype.name, "shape": ["batch", *x.shape[1:]]}, inputs
    )


def check_inputs(metadata: dict[str, Any], inputs: Any) -> None:
    """Refuse inputs of another shape or type than an exported model takes."""
    types = input_types(inputs)
    if types != metadata["input"]:
        raise UserError(
            f"the model takes {metadata['input']}, and not {types}: "
            "give it what it was trained on"
        )


def check_program(
    program: jax.export.Exported,
    metadata: dict[str, Any],
    arrays: dict[str, np.ndarray],
) -> None:
    """Check the types of a program's arguments against its file."""
    (wanted, inputs), _ = jax.tree.unflatten(program.in_tree, program.in_avals)
    if input_types(inputs) != metadata["input"]:
        raise ValueError("its program takes other inputs than its metadata says")
    for name, array in wanted.items():
        if (arrays[name].shape, arrays[name].dtype) != (array.shape, array.dtype):
            raise ValueError(f"its program takes another array {name}")
    classes = program.out_avals[0].shape[-1]
    if metadata["classifies"] and classes != len(metadata["labels"]):
        raise ValueError(f"its program has {classes} classes, its metadata others")


def load_exported(path: str | Path) -> Exported:
    """Read an exported model.

    Args:
        path: A file that `export_run` or `python -m pmapdp.export` wrote.

    Returns:
        An `Exported`. Its `outputs(inputs)` takes n inputs, and returns arrays by name:
        `logits` and `probabilities` of a classifier, `[n, C]`, or another model's
        `outputs`, `[n, ...]`.

    Raises:
        UserError: The file is damaged, isn't an exported model, or is from a version of
            JAX that this one can't read.

    Example:
        exported = load_exported("api.zip")
        print(exported.outputs(inputs[:2])["probabilities"])
    """
    metadata, arrays, files = read_exported_file(path, advice=ADVICE)
    failure = f"{path} is damaged"
    advice = "export it again"
    if metadata["jax"] != jax.__version__:
        failure = (
            f"{path} was exported with jax {metadata['jax']}, "
            f"which jax {jax.__version__} cannot read"
        )
        advice = "use that version, or export the model again with this one"
    with explain_errors(failure, advice):
        model = jax.export.deserialize(bytearray(files[PROGRAM]))
        loss = jax.export.deserialize(bytearray(files[LOSS]))
        model.mlir_module()  # so that a version too old or too new shows here
        check_program(model, metadata, arrays)
        featurizer = None
        if FEATURIZER in files:
            fitted = json.loads(files[FEATURIZER])
            featurizer = FEATURIZERS[metadata["view"]](**fitted)
    return Exported(metadata, model, arrays, loss, featurizer)


def export_run(
    workdir: str,
    path: str | Path,
    data_dir: str | None = None,
    *,
    best: bool = False,
    model: Callable[..., nnx.Module] | None = None,
    data: Any = None,
    loss: Callable[..., MetricSums] | None = None,
    metrics: Callable[..., dict[str, Any]] | None = None,
    optimizer: Callable[..., optax.GradientTransformation] | None = None,
    schedule: optax.Schedule | None = None,
    trainable: Any = None,
) -> dict[str, Any]:
    """Write the model of a run's newest checkpoint, or of its best epoch, to a file.

    Args:
        workdir: The folder of the run.
        path: The file to write or replace.
        data_dir: The folder of downloaded data sets. Default: as in training.
        best: Take the checkpoint of the best epoch.
        model: Your network, if you gave it to `train`. The same goes for what follows.
        data: Your data.
        loss: Your loss.
        metrics: Your metrics of a classifier.
        optimizer: Your optimizer.
        schedule: Your schedule.
        trainable: The parameters that you trained.

    Returns:
        The contents of the file's `metadata.json`, a dictionary: the model, its data
        set, the labels, the update and the metrics.

    Raises:
        UserError: The folder has no checkpoint, a value from Python is missing, or the
            file can't be written.

    Example:
        metadata = export_run("runs/api", "api.zip", model=Net, data=data)
        print(metadata["labels"])
    """
    custom = CustomParts(model, data, loss, metrics, optimizer, schedule, trainable)
    config = read_config(workdir)
    require_python_values(
        parts_from_python(config),
        custom._asdict(),
        "pmapdp.export.export_run",
        workdir,
        str(path),
    )
    # Before your code runs, which may change the current folder.
    file = check_output("FILE", str(path), MODEL_SIGNATURES)
    folder = os.path.abspath(workdir)
    with jax.enable_x64(config.dtype == "float64"):
        if data is None:
            data_set = load_data(config.dataset, data_dir or config.data_dir)
        else:
            data_set = make_data_set(data)
        task = rebuild_task(config, **custom._replace(data=None)._asdict())
        state, last_epoch = load_state(
            folder, task, best=best, data_fingerprint=fingerprint(data_set)
        )
    arrays, featurizer = featurize(data_set, task.model)
    step = int(state.step)
    results = {}
    for part in ("validation", "test"):
        # In the middle of an epoch, the last results belong to another update.
        if part in last_epoch and last_epoch["step"] == step:
            results[part] = last_epoch[part]
    metadata = {
        # Only the names of your files: their folders are nobody's business.
        "model": os.path.basename(config.model),
        "dataset": os.path.basename(config.dataset),
        "labels": arrays.classes,
        "step": step,
        "metrics": results,
    }
    export_model(
        task,
        state,
        file or path,
        examples=arrays.train.select(np.arange(1)),
        metadata=metadata,
        featurizer=featurizer,
    )
    return metadata


def export_model(
    task: Task,
    state: TrainState,
    path: str | Path,
    *,
    examples: Split,
    metadata: dict[str, Any],
    featurizer: Any = None,
) -> None:
    """Write a model and its loss to a file, which is replaced as a whole or not at all.

    Args:
        task: The model and its loss.
        state: Its state, on the host.
        path: The file.
        examples: One or more, to which the model must answer with finite numbers.
        metadata: JSON to keep with it. `labels` are the names of the classes, or empty.
        featurizer: A text model's, fitted to the training texts.
    """
    leaves, tree = jax.tree.flatten_with_path((state.params, state.model_state))
    arrays = {}
    for keys, leaf in leaves:
        # The first key says if it's a parameter.
        arrays["/".join(str(key.key) for key in keys[1:])] = np.asarray(leaf)
    try:
        model, loss = export_programs(task, arrays, tree, examples)
    except Exception as error:
        raise YourCodeError(explain_export_error(error)) from error
    check_outputs(model)
    labels = metadata.get("labels")
    if not labels and task.classifies:
        labels = range(model.out_avals[0].shape[-1])
    metadata = {
        "pmapdp": __version__,
        "jax": jax.__version__,
        "dtype": task.dtype,
        "view": getattr(task.model, "featurizer", "images"),
        "input": input_types(examples.inputs),
        "classifies": task.classifies,
        "step": 0,
        "dataset": PYTHON_DATA,
        **metadata,  # of a run: its step and data set in place of these
        "labels": [str(label) for label in labels or ()],
    }
    # Finite parameters may give infinite answers. Better now than at the user's.
    Exported(metadata, model, arrays, loss, featurizer).outputs(examples.inputs)
    files = {PROGRAM: bytes(model.serialize()), LOSS: bytes(loss.serialize())}
    if featurizer is not None:
        fitted = dataclasses.asdict(featurizer)
        files[FEATURIZER] = json.dumps(fitted).encode()
    write_exported_file(ExportedFile(metadata, arrays, files), path)


def check_outputs(model: jax.export.Exported) -> None:
    """Check that a program answers with one row for each example."""
    (_, inputs), _ = jax.tree.unflatten(model.in_tree, model.in_avals)
    batch_size = jax.tree.leaves(inputs)[0].shape[0]
    for output in model.out_avals:
        if output.shape[:1] != (batch_size,):
            raise UserError(
                f"the model answers {[*output.shape]}, not one row for each example: "
                "return [n, ...] arrays"
            )


def export_programs(
    task: Task, arrays: dict[str, np.ndarray], tree: Any, examples: Split
) -> tuple[jax.export.Exported, jax.export.Exported]:
    """Return the model and its loss as programs for any number of examples.

    Args:
        task: The model and its loss.
        arrays: The leaves of its parameters and other arrays, by name.
        tree: The structure whose leaves they are, in this order.
        examples: One or more, of which only types and shapes matter.
    """
    names = list(arrays)  # JAX sorts the arrays of a dictionary by name

    def build(arrays: dict[str, jax.Array]) -> Any:
        leaves = [arrays[name] for name in names]
        return task.merge_arrays(*jax.tree.unflatten(tree, leaves))

    def forward(arrays: dict[str, jax.Array], inputs: Any) -> dict[str, jax.Array]:
        model = build(arrays)
        if task.classifies:
            outputs = model(inputs)
            # Probabilities of bfloat16 wouldn't add up to 1.
            logits = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
            return {"logits": logits, "probabilities": jax.nn.softmax(logits)}
        outputs = getattr(model, "predict", model)(inputs)
        if isinstance(outputs, dict):
            return outputs
        if isinstance(outputs, tuple | list):
            return {f"output {number}": x for number, x in enumerate(outputs)}
        return {"outputs": outputs}

    def sums(
        arrays: dict[str, jax.Array], inputs: Any, labels: jax.Array, weights: jax.Array
    ) -> dict[str, Any]:
        indices = jnp.zeros(weights.shape, jnp.int32)  # they matter only in training
        batch = Batch(inputs, labels, indices, weights)
        return named_sums(task.loss(build(arrays), batch))

    # The number of examples is a symbol, so one program serves every batch size.
    with jax.enable_x64(task.dtype == "float64"), without_locations():
        inputs, labels, weights = jax.export.symbolic_args_specs(
            (examples.inputs, examples.labels, np.ones(1, np.float32)), "batch, ..."
        )
        export_model = jax.export.export(jax.jit(forward), platforms=PLATFORMS)
        export_loss = jax.export.export(jax.jit(sums), platforms=PLATFORMS)
        return (
            export_model(arrays, inputs),
            export_loss(arrays, inputs, labels, weights),
        )


@contextlib.contextmanager
def without_locations() -> Iterator[None]:
    """Keep file names out of programs.

    They say much about a machine, and differ from export to export.
    """
    # No more than 0 files of a full traceback, because a short one names one file.
    settings = {
        "jax_include_full_tracebacks_in_locations": True,
        "jax_traceback_in_locations_limit": 0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


COMMAND = flags.Command(
    usage="python -m pmapdp.export WORKDIR FILE [flags]",
    example="python -m pmapdp.export runs/first model.zip",
    description=__doc__,
)


@dataclass(frozen=True)
class Options:
    """The run, and the file to write."""

    workdir: str = setting(
        "arguments",
        MISSING,
        "Folder of the run, whose newest checkpoint is exported.",
        positional="WORKDIR",
    )
    file: str = setting(
        "arguments",
        MISSING,
        "File to write or to replace, such as model.zip.",
        positional="FILE",
    )
    best: bool = setting(
        "options", False, "Export the best epoch instead of the newest checkpoint."
    )
    data_dir: str | None = setting(
        "options",
        None,
        "Folder of downloaded data. Default: as in training.",
        metavar="FOLDER",
    )


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = flags.parse(COMMAND, Options, arguments)
    file = Path(options.file).absolute()  # your code may change the current folder
    metadata = export_run(
        options.workdir, options.file, options.data_dir, best=options.best
    )
    megabytes = file.stat().st_size / 1e6
    print(
        f"{options.file}: {metadata['model']} after {metadata['step']:,} updates, "
        f"{megabytes:.2f} MB"
    )
    for part, means in metadata["metrics"].items():
        numbers = [
            f"{name} {value:.4f}" for name, value in means.items() if name != "examples"
        ]
        print(part, *numbers)
    if not metadata["metrics"]:
        print("no metrics: the run was not evaluated after this update")


if __name__ == "__main__":
    sys.exit(cli.run(main))
