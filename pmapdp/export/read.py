"""A model that `python -m pmapdp.export` wrote, ready to be called; `write.py` says what is in the file.

The checksums of the zip (CRC-32) are looked at first, so no damaged file reaches JAX, and no pickle is read. They do
not protect from a file that was made to do harm: it holds a program, which JAX parses, compiles and runs in C++. Read
only files of people whose programs you would run.
"""

import contextlib
import io
import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

from pmapdp.errors import UserError, reason, shown
from pmapdp.files import read_file
from pmapdp.registry import FEATURIZERS

FORMAT = "pmapdp model 2"
METADATA, PROGRAM, LOSS, ARRAYS, VIEW = "metadata.json", "model.jax", "loss.jax", "arrays/", "view.json"
EXAMPLES_PER_CALL = 256
ADVICE = "name a file made with python -m pmapdp.export, or export the model again"


@dataclass(frozen=True)
class Exported:
    """An exported model."""

    metadata: dict[str, Any]  # what is known about it: `labels`, `metrics`, `input` (shape and type) and more
    model: jax.export.Exported  # the network; its arguments are the arrays and the inputs
    arrays: dict[str, np.ndarray]  # parameters and running statistics
    view: Any = None  # of a text model, what turns n strings into its inputs
    loss: jax.export.Exported | None = None  # the sums of its loss and metrics; files of pmapdp 0.1 have none

    @property
    def classifies(self) -> bool:
        """Whether the outputs are those of a classifier."""
        return bool(self.metadata.get("classifies", True))

    @cached_property
    def compiled(self) -> Any:
        """The network with its parameters on the default device: compiled once for every number of inputs."""
        arrays = jax.device_put(self.arrays)
        call = jax.jit(self.model.call)
        return lambda inputs: call(arrays, inputs)

    def precision(self) -> contextlib.AbstractContextManager[Any]:
        """Lets JAX compute in the type in which the model was trained, float64 too."""
        return jax.enable_x64(self.metadata["dtype"] == "float64")

    def outputs(self, inputs: Any) -> dict[str, np.ndarray]:
        """`logits` and `probabilities`, both `[n, C]`, of n >= 1 inputs as `metadata["input"]` says; of a model that is
        no classifier its `outputs`, `[n, ...]`.

        Raises:
            UserError: the model does not take such inputs, or does not answer with finite numbers.
        """
        jax.devices()  # where JAX cannot start, that is no fault of the inputs

        def answer(start: int) -> dict[str, np.ndarray]:
            some = jax.tree.map(lambda x: x[start : start + EXAMPLES_PER_CALL], inputs)
            return jax.device_get(self.compiled(jax.device_put(some)))

        given = shown(inputs)
        try:
            inputs = jax.tree.map(np.asarray, inputs, is_leaf=lambda each: not isinstance(each, dict))
            given = in_words(jax.tree.map(lambda x: {"dtype": x.dtype.name, "shape": list(x.shape)}, inputs))
            with self.precision():
                parts = [answer(start) for start in range(0, len(jax.tree.leaves(inputs)[0]), EXAMPLES_PER_CALL)]
            outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        except Exception as error:  # JAX has several for what it cannot call
            raise UserError(
                f"the model does not take inputs {given} ({reason(error)}): give it what it was trained on, "
                f"{in_words(self.metadata['input'])}"
            ) from error
        if not all(np.isfinite(each).all() for each in outputs.values()):
            raise UserError("the model answers with nan: train it again with a lower --learning-rate")
        return outputs


def in_words(arrays: dict[str, Any]) -> str:
    """Shape and type of an array, from what `metadata["input"]` has of it, or of each in a dictionary."""
    match arrays:
        case {"dtype": str(dtype), "shape": [*shape]}:
            return f"{shape} of {dtype}"
        case {**others} if not others:
            raise ValueError("its input has no shape and type")
    return ", ".join(f"{name!r} {in_words(each)}" for name, each in arrays.items())


def load_exported(path: str | Path) -> Exported:
    """Read what `pmapdp.export.write.export_model` wrote.

    Raises:
        UserError: there is no such file, it is damaged, is something else, or is of a version that cannot be read.
    """
    content = read_file(path, advice=ADVICE)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            # Then what is read is not larger than the file: a few kilobytes cannot unpack to gigabytes.
            if any(each.compress_type for each in members) or sum(each.file_size for each in members) > len(content):
                raise ValueError("it is compressed, or not as long as it says")
            match metadata := json.loads(archive.read(METADATA)):
                case {"format": found} if found != FORMAT:
                    raise ValueError(f"its format is {found!r}, not {FORMAT!r}")
                case {
                    "format": _,
                    "jax": str(),
                    "dtype": str(),
                    "input": dict(),
                    "labels": [*labels],
                }:
                    if not all(isinstance(label, str) for label in labels):
                        raise ValueError("its labels are not all texts")
                case _:
                    raise ValueError(f"{METADATA} has another form")
            in_words(metadata["input"])
            loss = [LOSS] if LOSS in archive.namelist() else []
            programs = [bytearray(archive.read(name)) for name in (PROGRAM, *loss)]
            arrays = {name: np.load(io.BytesIO(archive.read(f"{ARRAYS}{name}.npy"))) for name in metadata["arrays"]}
            view = (
                FEATURIZERS[metadata["view"]](**json.loads(archive.read(VIEW))) if VIEW in archive.namelist() else None
            )
        if view:
            view(["a text"])  # shows whether its vocabulary is one
    except UserError:
        raise
    except Exception as error:  # zipfile, NumPy and scikit-learn have several for what is not as it should be
        raise UserError(f"{path} is damaged, or is no exported model ({reason(error)}): {ADVICE}") from None
    try:
        model, *sums = map(jax.export.deserialize, programs)
        model.mlir_module()  # so that a version too old or too new shows here
    except Exception as error:  # JAX has no error of its own for versions that it does not read
        raise UserError(
            f"{path} was exported with jax {metadata['jax']}, which jax {jax.__version__} cannot read "
            f"({reason(error)}): use jax {metadata['jax']}, or export the model again with this one"
        ) from None
    exported = Exported(metadata, model, arrays, view, *sums)
    classes = model.out_avals[0].shape[-1] if exported.classifies else len(labels)
    if len(labels) != classes:
        raise UserError(f"{path} names {len(labels)} labels for {classes} classes: name all of them and export again")
    return exported
