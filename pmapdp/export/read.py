"""A model that `python -m pmapdp.export` wrote, ready to be called; `write.py` says what is in the file.

Only a file whose SHA256SUMS fits its contents is looked into, so neither a damaged file nor one of another program
brings JAX to parse a program. No pickle is read. Whoever writes fitting checksums can hand any program to JAX, which
parses it in C++: read files of people whom you trust.
"""

import contextlib
import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import jax
import jax.export
import numpy as np

from pmapdp.errors import UserError, reason
from pmapdp.export.inputs import read_array
from pmapdp.files import read_file
from pmapdp.forms import parse_json
from pmapdp.registry import VIEWS

FORMAT = "pmapdp model 2"
METADATA, PROGRAM, ARRAYS, VIEW, CHECKSUMS = "metadata.json", "model.jax", "arrays/", "view.json", "SHA256SUMS"
FORM = {
    "format": Literal[FORMAT],
    "jax": str,
    "dtype": str,
    "labels": list[str],
    "arrays": list[str],
    "input": {"dtype": str, "shape": list[Any]},
    "view": str,
}
EXAMPLES_PER_CALL = 256


@dataclass(frozen=True)
class Exported:
    """An exported model."""

    metadata: dict[str, Any]  # what is known about it: `labels`, `metrics`, `input` (shape and type) and more
    model: jax.export.Exported  # the network; its arguments are the arrays and the inputs
    arrays: dict[str, np.ndarray]  # parameters and running statistics
    view: Any = None  # of a model of texts, what turns n strings into its inputs

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
        """`logits` and `probabilities`, both `[n, C]`, of n >= 1 inputs as `metadata["input"]` says.

        Raises:
            UserError: the model does not take such inputs, or does not answer with finite numbers.
        """
        try:
            with self.precision():
                parts = [
                    jax.device_get(self.compiled(inputs[start : start + EXAMPLES_PER_CALL]))
                    for start in range(0, len(inputs), EXAMPLES_PER_CALL)
                ]
        except Exception as error:  # JAX has several for what it cannot call
            shape = list(inputs.shape)
            raise UserError(
                f"the model does not take inputs {shape} of {inputs.dtype} ({reason(error)}): give it what it was "
                f"trained on, {self.metadata['input']['shape']} of {self.metadata['input']['dtype']}"
            ) from error
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if not np.isfinite(outputs["probabilities"]).all():
            raise UserError("the model answers with nan: train it again with a lower --learning-rate")
        return outputs


def load_exported(path: str | Path) -> Exported:
    """Read what `pmapdp.export.write.export_model` wrote.

    Raises:
        UserError: there is no such file, it is damaged, is something else, or is of a version that cannot be read.
    """
    files = read_zip(path)
    metadata = parse_json(files.get(METADATA, b""), FORM, f"{METADATA} in {path}", advice="export the model again")
    try:
        model = jax.export.deserialize(bytearray(files[PROGRAM]))
        model.mlir_module()  # so that a version too old or too new shows here
    except Exception as error:  # JAX has no error of its own for versions that it does not read
        raise UserError(
            f"{path} was exported with jax {metadata['jax']}, which jax {jax.__version__} cannot read "
            f"({reason(error)}): use jax {metadata['jax']}, or export the model again with this one"
        ) from None
    arrays = {name: read_array(files[f"{ARRAYS}{name}.npy"]) for name in metadata["arrays"]}
    view = VIEWS[metadata["view"]](**json.loads(files[VIEW])) if VIEW in files else None
    return Exported(metadata, model, arrays, view)


def read_zip(path: str | Path) -> dict[str, bytes]:
    """The files (name to content) in a zip without compression, after a look at their checksums.

    Raises:
        UserError: there is no such file, it cannot be read, is damaged, or was made by something else.
    """
    advice = "name a file made with python -m pmapdp.export, or export the model again"
    content = read_file(path, advice=advice)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            # Then what is read is not larger than the file: a few kilobytes cannot unpack to gigabytes.
            if any(each.compress_type for each in members) or sum(each.compress_size for each in members) > len(
                content
            ):
                raise ValueError("it is compressed, or not as long as it says")
            files = {each.filename: archive.read(each) for each in members}
        if files.pop(CHECKSUMS, None) != checksums(files):
            raise ValueError(f"{CHECKSUMS} does not fit")
    except Exception as error:  # zipfile has several errors for damaged bytes
        raise UserError(f"{path} is damaged, or is no exported model ({reason(error)}): {advice}") from None
    return files


def checksums(files: dict[str, bytes]) -> bytes:
    """The lines of `sha256sum` about files (name to content)."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()).encode()
