"""A model that `python -m pmapdp.export` wrote, ready to be called; `writer.py` says what is in the file."""

import contextlib
import io
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

from pmapdp.errors import UserError
from pmapdp.export.archive import read_archive
from pmapdp.registry import VIEWS

FORMAT, FORMAT_VERSION = "pmapdp model", 1
METADATA, PROGRAM, ARRAYS, TEXT = "metadata.json", "model.jax", "arrays/", "text/"
EXAMPLES_PER_CALL = 256


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        metadata: what is known about it: `labels`, `metrics`, `input` (shape and type) and more.
        model: the network; its arguments are the arrays and the inputs.
        arrays: parameters and running statistics.
        view: of a model of texts, what turns n strings into its inputs; None for a model of images.
    """

    metadata: dict[str, Any]
    model: jax.export.Exported
    arrays: dict[str, np.ndarray]
    view: Any = None

    @cached_property
    def compiled(self) -> Any:
        """The network with its parameters on the default device: compiled once for every number of inputs."""
        arrays = jax.device_put(self.arrays)
        call = jax.jit(self.model.call)
        return lambda inputs: call(arrays, inputs)

    def precision(self) -> contextlib.AbstractContextManager:
        """Lets JAX compute in the type in which the model was trained, float64 too."""
        return jax.enable_x64(self.metadata["dtype"] == "float64")

    def outputs(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """`logits` and `probabilities`, both `[n, C]`, of n >= 1 inputs as `metadata["input"]` says."""
        with self.precision():
            parts = [
                jax.device_get(self.compiled(inputs[start : start + EXAMPLES_PER_CALL]))
                for start in range(0, len(inputs), EXAMPLES_PER_CALL)
            ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def predict(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The most probable class of every input `[n]` and the probabilities of all classes `[n, C]`."""
        outputs = self.outputs(inputs)
        return outputs["logits"].argmax(-1), outputs["probabilities"]


def load_exported(path: str | Path) -> Exported:
    """Read what `pmapdp.export.writer.export_model` wrote. No pickle is read, but a program is: read what you trust.

    Raises:
        UserError: there is no such file, it is damaged, is something else, or is of a version that cannot be read.
    """
    files = read_archive(path, "python -m pmapdp.export")
    try:
        metadata = json.loads(files[METADATA])
        if metadata["format"] != FORMAT:
            raise ValueError
        format_version = metadata["format_version"]
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{path} is a zip, but was not made with python -m pmapdp.export") from None
    if format_version != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {format_version}, and this pmapdp reads {FORMAT_VERSION}: "
            f"install pmapdp {metadata['pmapdp']}, which wrote it, or export the model again with this one"
        )
    arrays = {
        name: np.load(io.BytesIO(files[f"{ARRAYS}{name}.npy"]), allow_pickle=False) for name in metadata["arrays"]
    }
    try:
        model = jax.export.deserialize(bytearray(files[PROGRAM]))
        model.mlir_module()  # parses the program, so that a version too old or too new shows here
    except Exception as error:  # JAX has no error of its own for versions that it does not read
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(
            f"{path} was exported with jax {metadata['jax']}, which jax {jax.__version__} cannot read "
            f"({reason}): use jax {metadata['jax']}, or export the model again with this one"
        ) from None
    return Exported(metadata, model, arrays, read_view(metadata, files))


def read_view(metadata: dict[str, Any], files: dict[str, bytes]) -> Any:
    """The view of texts that `pmapdp.export.writer.view_files` wrote; None where the model takes images."""
    view = VIEWS.get(metadata.get("view", "images"))
    if view is None:
        return None
    values = {}
    for name, content in files.items():
        if name.startswith(TEXT):
            field, kind = name.removeprefix(TEXT).rsplit(".", 1)
            values[field] = json.loads(content) if kind == "json" else np.load(io.BytesIO(content), allow_pickle=False)
    return view(**values)
