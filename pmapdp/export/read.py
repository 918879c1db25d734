"""A model that `python -m pmapdp.export` wrote, ready to be called; `write.py` says what is in the file."""

import contextlib
import dataclasses
import hashlib
import io
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NotRequired

import jax
import jax.export
import numpy as np

from pmapdp.data.tfidf import FEATURES
from pmapdp.data.tokens import FIRST_WORD, VOCABULARY
from pmapdp.environment import can_fork, crash
from pmapdp.errors import UserError, reason
from pmapdp.export.inputs import read_array
from pmapdp.files import read_file
from pmapdp.forms import mismatch, parse_json
from pmapdp.registry import VIEWS

FORMAT, FORMAT_VERSION = "pmapdp model", 1
METADATA, PROGRAM, ARRAYS, TEXT, CHECKSUMS = "metadata.json", "model.jax", "arrays/", "text/", "SHA256SUMS"
MADE_BY = "python -m pmapdp.export"
FORM = {
    "dtype": Literal["float32", "bfloat16", "float64"],
    "labels": list[str],
    "arrays": list[str],
    "input": {"dtype": str, "shape": list[Any]},
    "view": NotRequired[Literal["images", *VIEWS]],
    "dataset": NotRequired[str],
    "step": NotRequired[int],
}
MOST_WORDS = {"tfidf": FEATURES, "tokens": VOCABULARY - FIRST_WORD}
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
        """`logits` and `probabilities`, both `[n, C]`, of n >= 1 inputs as `metadata["input"]` says."""
        with self.precision():
            parts = [
                jax.device_get(self.compiled(inputs[start : start + EXAMPLES_PER_CALL]))
                for start in range(0, len(inputs), EXAMPLES_PER_CALL)
            ]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def predict(self, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The most probable class of every input `[n]` and the probabilities of all classes `[n, C]`.

        Raises `UserError` where the program cannot be run, or gives no numbers, as of a model whose training diverged.
        """
        try:
            outputs = self.outputs(inputs)
        except Exception as error:  # whatever is wrong with a program that could be parsed
            raise UserError(f"the model cannot be run on these inputs ({reason(error)}): export it again") from error
        if not np.isfinite(outputs["probabilities"]).all():
            raise UserError("the model answers with nan: train it again with a lower --learning-rate")
        return outputs["logits"].argmax(-1), outputs["probabilities"]


def load_exported(path: str | Path) -> Exported:
    """Read what `pmapdp.export.write.export_model` wrote. No pickle is read, but a program is: read what you trust.

    Raises:
        UserError: there is no such file, it is damaged, is something else, or is of a version that cannot be read.
    """
    files = read_zip(path)
    head = {"format": Literal["pmapdp model"], "format_version": int, "pmapdp": str, "jax": str}
    try:
        metadata = parse_json(files.get(METADATA, b""), head, METADATA, advice="")
    except UserError:
        raise UserError(f"{path} is a zip, but was not made with {MADE_BY}") from None
    if metadata["format_version"] != FORMAT_VERSION:
        raise UserError(
            f"{path} has format version {metadata['format_version']}, and this pmapdp reads {FORMAT_VERSION}: "
            f"install pmapdp {metadata['pmapdp']}, which wrote it, or export the model again with this one"
        )
    try:
        if wrong := mismatch(metadata, FORM, ""):
            raise ValueError(f"{METADATA} {wrong}")
        arrays = {name: read_array(files[f"{ARRAYS}{name}.npy"]) for name in metadata["arrays"]}
        view = read_view(metadata, files)
    except (ValueError, TypeError, LookupError, UserError) as error:
        raise UserError(f"{path} is not as it was written ({reason(error)}): export the model again") from None

    def parse() -> jax.export.Exported:
        model = jax.export.deserialize(bytearray(files[PROGRAM]))
        model.mlir_module()  # so that a version too old or too new shows here
        return model

    try:
        if can_fork() and (wrong := crash(parse)):  # as of a program that was altered, and its checksum with it
            raise ValueError(wrong)
        model = parse()
        right = belong_together(model, arrays, metadata)
    except Exception as error:  # JAX has no error of its own for versions that it does not read
        raise UserError(
            f"{path} was exported with jax {metadata['jax']}, which jax {jax.__version__} cannot read "
            f"({reason(error)}): use jax {metadata['jax']}, or export the model again with this one"
        ) from None
    if not right:
        raise UserError(f"{path} holds a program and parameters of different models: export the model again")
    return Exported(metadata, model, arrays, view)


def read_zip(path: str | Path) -> dict[str, bytes]:
    """The files (name to content) in a zip, compared with their checksums.

    Raises:
        UserError: there is no such file, it cannot be read, is damaged, or was made by something else.
    """
    content = read_file(path, advice=f"name a file made with {MADE_BY}")
    if not content.startswith(b"PK"):
        raise UserError(f"{path} is no zip: name a file made with {MADE_BY}")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            if sum(each.file_size for each in members) > 4 * len(content) + 2**20:  # ours gain little by compression
                raise ValueError("a few kilobytes that claim to be gigabytes")
            files = {each.filename: archive.read(each) for each in members}
        if files.get(CHECKSUMS, checksums(files)) != checksums(files):
            raise ValueError("altered")
    except Exception:  # zipfile has several errors for damaged bytes
        raise UserError(
            f"{path} is damaged, it was cut short or altered: copy it again, or export the model again"
        ) from None
    if CHECKSUMS not in files:
        raise UserError(f"{path} is a zip, but was not made with {MADE_BY}")
    return files


def checksums(files: dict[str, bytes]) -> bytes:
    """The lines of `sha256sum` about files (name to content)."""
    contents = ((name, content) for name, content in files.items() if name != CHECKSUMS)
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in contents).encode()


def read_view(metadata: dict[str, Any], files: dict[str, bytes]) -> Any:
    """The view of texts in the file, tried out; None where the model takes images."""
    view_type = VIEWS.get(metadata.get("view", "images"))
    if view_type is None:
        return None
    values: dict[str, Any] = {}
    for field in dataclasses.fields(view_type):
        name = f"{TEXT}{field.name}"
        if f"{name}.npy" in files:
            values[field.name] = read_array(files[f"{name}.npy"])
        else:
            values[field.name] = parse_json(files[f"{name}.json"], list[str], f"{name}.json", advice="")
    view = view_type(**values)
    if len(view.vocabulary) > MOST_WORDS[metadata["view"]]:
        raise ValueError(f"the vocabulary has {len(view.vocabulary):,} words")
    view(["a text"])
    return view


def belong_together(model: jax.export.Exported, arrays: dict[str, np.ndarray], metadata: dict[str, Any]) -> bool:
    """Whether the program takes these arrays and the inputs of the metadata, and knows as many classes."""
    (expected, inputs), _ = jax.tree.unflatten(model.in_tree, model.in_avals)
    logits = jax.tree.unflatten(model.out_tree, model.out_avals)["logits"]
    return (
        {name: (each.shape, each.dtype) for name, each in expected.items()}
        == {name: (each.shape, each.dtype) for name, each in arrays.items()}
        and [inputs.dtype, *inputs.shape[1:]] == [metadata["input"]["dtype"], *metadata["input"]["shape"][1:]]
        and logits.shape[-1] == len(metadata["labels"])
    )
