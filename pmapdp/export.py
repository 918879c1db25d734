"""Write the trained model of a run to one file, for `pmapdp.predict` and others.

    python -m pmapdp.export runs/first model.zip         # its newest checkpoint
    python -m pmapdp.export runs/first model.zip --best  # its best epoch
    python -m pmapdp.export runs/texts model.zip --data-dir data

The file holds a program, so give people only files that they have a reason to trust.
docs/export.md says what else is in it, and how JAX and NumPy read it without this
package.
"""

import contextlib
import dataclasses
import io
import json
import os
import sys
import zipfile
from dataclasses import MISSING, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from pmapdp import __version__, cli
from pmapdp.archive import (
    ARRAYS,
    FEATURIZER,
    FORMAT,
    LOSS,
    METADATA,
    PROGRAM,
    read_archive,
)
from pmapdp.config import setting
from pmapdp.custom.data import fingerprint, make_data_set
from pmapdp.custom.model import not_exportable
from pmapdp.data.batches import Batch
from pmapdp.data.dataset import Split
from pmapdp.errors import UserError, explain_errors
from pmapdp.files import MODEL, check_output, write_file
from pmapdp.loss import named_sums
from pmapdp.registry import FEATURIZERS, featurize, load_data, require_python_values
from pmapdp.run.checkpoints import load_state
from pmapdp.run.workdir import read_config
from pmapdp.state import Task, TrainState
from pmapdp.train import rebuild_task

PLATFORMS = ("cpu", "cuda", "tpu")
EXAMPLES_PER_CALL = 256
ADVICE = "name a file that python -m pmapdp.export wrote"


@dataclass(frozen=True)
class Exported:
    """An exported model, ready to be called."""

    metadata: dict[
        str, Any
    ]  # `labels`, `metrics`, `input` (shape and type), `classifies` and more
    model: jax.export.Exported  # a function of the arrays and the inputs
    arrays: dict[str, np.ndarray]  # parameters and running statistics
    loss: (
        jax.export.Exported
    )  # the sums of its loss and metrics, of labels and weights too
    featurizer: Any = None  # of a text model, turns n strings into its inputs

    @cached_property
    def compiled(self) -> Any:
        """The network with its arrays on the default device, compiled once for every number of inputs."""
        arrays, call = jax.device_put(self.arrays), jax.jit(self.model.call)
        return lambda inputs: call(arrays, inputs)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Let JAX compute in the type in which the model was trained, float64 too."""
        return jax.enable_x64(self.metadata["dtype"] == "float64")

    def outputs(self, inputs: Any) -> dict[str, np.ndarray]:
        """Return `logits` and `probabilities`, both `[n, C]`, of n >= 1 inputs; of a
        model that is no classifier its `outputs`, `[n, ...]`. A `UserError` says that
        the model takes other inputs, or answers with NaN."""
        if (given := describe_arrays(inputs)) != self.metadata["input"]:
            raise UserError(
                f"the model takes {self.metadata['input']}, and not {given}: give it what it was trained on"
            )
        parts = []
        with self.precision():
            for start in range(0, len(jax.tree.leaves(inputs)[0]), EXAMPLES_PER_CALL):
                some = jax.tree.map(
                    lambda x, start=start: x[start : start + EXAMPLES_PER_CALL], inputs
                )
                parts.append(jax.device_get(self.compiled(jax.device_put(some))))
        outputs = {
            name: np.concatenate([part[name] for part in parts]) for name in parts[0]
        }
        if not all(np.isfinite(each).all() for each in outputs.values()):
            raise UserError(
                "the model answers with nan or infinity: train it again with a lower --learning-rate"
            )
        return outputs


def describe_arrays(inputs: Any) -> Any:
    """Return type and shape of each array in a batch of inputs, as they are in `metadata["input"]`."""
    return jax.tree.map(
        lambda x: {"dtype": x.dtype.name, "shape": ["batch", *x.shape[1:]]}, inputs
    )


def check_program(
    program: jax.export.Exported,
    metadata: dict[str, Any],
    arrays: dict[str, np.ndarray],
) -> None:
    """Check that a program takes the arrays and inputs that its file has and says."""
    (wanted, inputs), _ = jax.tree.unflatten(program.in_tree, program.in_avals)
    if describe_arrays(inputs) != metadata["input"]:
        raise ValueError("its program takes other inputs than its metadata says")
    for name, array in wanted.items():
        if (arrays[name].shape, arrays[name].dtype) != (array.shape, array.dtype):
            raise ValueError(f"its program takes another array {name}")
    classes = program.out_avals[0].shape[-1]
    if metadata["classifies"] and classes != len(metadata["labels"]):
        raise ValueError(f"its program has {classes} classes, its metadata others")


def load_exported(path: str | Path) -> Exported:
    """Read an exported model. A `UserError` says that it is damaged, something else, or of another version.

    The checksums of the zip are looked at first, so that no damaged file reaches JAX.
    """
    metadata, arrays, files = read_archive(path, advice=ADVICE)
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
    data: Any = None,
    **yours: Any,
) -> dict[str, Any]:
    """Write the model of the newest checkpoint of a run, or of its best epoch, and return the file's metadata.

    Give `data`, and `yours`, `model` and the like, again if `train` was given them as
    Python values.
    """
    config = read_config(workdir)
    require_python_values(
        config, {"data": data} | yours, "pmapdp.export.export_run", workdir, str(path)
    )
    file, folder = check_output("FILE", str(path), MODEL), os.path.abspath(workdir)
    with jax.enable_x64(config.dtype == "float64"):
        data = (
            load_data(config.dataset, data_dir or config.data_dir)
            if data is None
            else make_data_set(data)
        )
        task = rebuild_task(config, **yours)
        state, progress = load_state(folder, task, best=best, content=fingerprint(data))
    arrays, featurizer = featurize(data, task.model)
    step, last = int(state.step), progress["last"]
    measured = {name: last[name] for name in ("validation", "test") if name in last}
    metadata = {
        # Only the names of files of yours: their folders are nobody's business.
        "model": os.path.basename(config.model),
        "dataset": os.path.basename(config.dataset),
        "labels": arrays.classes,
        "step": step,
        "metrics": measured
        if last.get("step") == step
        else {},  # the middle of an epoch was not evaluated
        "measured": {name: last["step"] for name in measured},  # after how many updates
    }
    example = arrays.train.select(np.arange(1))
    export_model(
        task,
        state,
        file or path,
        examples=example,
        metadata=metadata,
        featurizer=featurizer,
    )
    return metadata


def export_model(
    task: Task,
    state: TrainState,  # on the host
    path: str | Path,  # replaced as a whole or not at all
    *,
    examples: Split,  # one or more, to which the model must answer with finite numbers
    metadata: dict[
        str, Any
    ],  # JSON to keep with it; `labels` are the names of the classes, empty for their numbers
    featurizer: Any = None,  # of a text model, fitted to the training texts
) -> None:
    """Write a model and its loss to a zip."""
    leaves, tree = jax.tree.flatten_with_path((state.params, state.model_state))
    names = ["/".join(str(key.key) for key in keys[1:]) for keys, _ in leaves]
    arrays = {
        name: np.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)
    }

    def build(arrays: dict[str, jax.Array]) -> Any:
        return task.model_with(
            *jax.tree.unflatten(tree, [arrays[name] for name in names])
        )

    def forward(arrays: dict[str, jax.Array], inputs: Any) -> dict[str, jax.Array]:
        model = build(arrays)
        if task.classifies:
            outputs = model(inputs)
            logits = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
            return {"logits": logits, "probabilities": jax.nn.softmax(logits)}
        outputs = getattr(model, "predict", model)(inputs)
        if isinstance(outputs, tuple | list):
            return {f"output {number}": each for number, each in enumerate(outputs)}
        return outputs if isinstance(outputs, dict) else {"outputs": outputs}

    def sums(
        arrays: dict[str, jax.Array], inputs: Any, labels: jax.Array, weights: jax.Array
    ) -> dict[str, Any]:
        indices = jnp.zeros(weights.shape, jnp.int32)  # they matter only in training
        return named_sums(
            task.loss(build(arrays), Batch(inputs, labels, indices, weights))
        )

    # JAX notes the file of every operation, which says much about the machine and
    # differs from export to export.
    silent = {
        "jax_include_full_tracebacks_in_locations": True,
        "jax_traceback_in_locations_limit": 0,
    }
    try:
        with jax.enable_x64(task.dtype == "float64"), contextlib.ExitStack() as stack:
            for name, value in silent.items():
                stack.callback(jax.config.update, name, getattr(jax.config, name))
                jax.config.update(name, value)
            batch = examples.inputs, examples.labels, np.ones(1, np.float32)
            inputs, labels, weights = jax.export.symbolic_args_specs(
                batch, "batch, ..."
            )
            model = jax.export.export(jax.jit(forward), platforms=PLATFORMS)(
                arrays, inputs
            )
            loss = jax.export.export(jax.jit(sums), platforms=PLATFORMS)(
                arrays, inputs, labels, weights
            )
    except Exception as error:
        raise UserError(not_exportable(error)) from error
    for output in model.out_avals:
        if output.shape[:1] != jax.tree.leaves(inputs)[0].shape[:1]:
            raise UserError(
                f"the model answers {[*output.shape]}, not one row for each example: return [n, ...] arrays"
            )
    metadata = {
        "format": FORMAT,
        "pmapdp": __version__,
        "jax": jax.__version__,
        "dtype": task.dtype,
        "view": getattr(task.model, "featurizer", "images"),
        "input": describe_arrays(examples.inputs),
        "classifies": task.classifies,
        "step": 0,
        "dataset": "arrays",
        "arrays": names,
        **metadata,
        "labels": [
            *map(
                str,
                metadata.get("labels")
                or range(model.out_avals[0].shape[-1] if task.classifies else 0),
            )
        ],
    }
    Exported(metadata, model, arrays, loss).outputs(
        examples.inputs
    )  # finite parameters may give infinite answers
    files = {
        METADATA: json.dumps(metadata, indent=2).encode(),
        PROGRAM: model.serialize(),
        LOSS: loss.serialize(),
    }
    if featurizer is not None:
        files[FEATURIZER] = json.dumps(dataclasses.asdict(featurizer)).encode()
    zipped = io.BytesIO()
    np.savez(zipped, **{f"{ARRAYS}{name}": array for name, array in arrays.items()})  # type: ignore[arg-type]
    with zipfile.ZipFile(zipped, "a") as archive:
        for (
            name,
            content,
        ) in (
            files.items()
        ):  # dated 1980 like NumPy's, so the same model gives the same bytes
            archive.writestr(zipfile.ZipInfo(name), bytes(content))
    write_file(path, zipped.getvalue())


COMMAND = cli.Command(
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
        "Folder of the run; its newest checkpoint is taken.",
        place="WORKDIR",
    )
    file: str = setting(
        "arguments",
        MISSING,
        "The file to write, or to replace, for example model.zip.",
        place="FILE",
    )
    best: bool = setting(
        "options", False, "The checkpoint of its best epoch instead of the newest."
    )
    data_dir: str | None = setting(
        "options",
        None,
        "Folder of downloaded data sets; default: as in training.",
        takes="FOLDER",
    )


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = cli.parse(COMMAND, Options, arguments)
    file = Path(options.file).absolute()  # your code may change the current folder
    metadata = export_run(
        options.workdir, options.file, options.data_dir, best=options.best
    )
    done = f"{metadata['model']} after {metadata['step']:,} updates"
    print(f"{options.file}: {done}, {file.stat().st_size / 1e6:.2f} MB")
    for part, means in metadata["metrics"].items():
        print(
            part,
            *(
                f"{name} {value:.4f}"
                for name, value in means.items()
                if name != "examples"
            ),
        )
    if not metadata["metrics"]:
        when = "".join(
            f"{part} was measured after update {step:,}"
            for part, step in metadata["measured"].items()
        )
        print(f"no metrics: {when or 'the run has no test or validation data'}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
