"""A trained model as one portable file, written by `python -m pmapdp.export WORKDIR model.zip`.

The file is a zip without compression, and NumPy takes it for one of its own (.npz):

    metadata.json    labels, metrics, shapes and types, versions
    model.jax        the network as `jax.export` serialized it: StableHLO for CPU, CUDA and TPU, any batch size
    arrays/*.npy     parameters and running statistics
    text/*           of a model of texts: the vocabulary (.json) and, for tf-idf weights, the idf weights (.npy)
    SHA256SUMS       the checksums of the others, for `sha256sum --check`

Nothing in it is a pickle, and it needs none of our code. JAX (with flatbuffers) and NumPy are enough:

    import json
    import jax
    import jax.export
    import numpy as np

    with np.load("model.zip") as file:
        metadata = json.loads(file["metadata.json"])
        model = jax.export.deserialize(bytearray(file["model.jax"]))
        arrays = {name: file["arrays/" + name] for name in metadata["arrays"]}
    outputs = jax.jit(model.call)(arrays, images)  # uint8 [n, 28, 28, 1], as metadata["input"] says
    classes = [metadata["labels"][number] for number in outputs["logits"].argmax(-1)]

`outputs` also has "probabilities" `[n, C]`. A model trained in float64 (metadata["dtype"]) first needs
`jax.config.update("jax_enable_x64", True)`. With our code it is `pmapdp.export.read.load_exported`.

A model of texts takes what its view of them makes of strings, metadata["view"]: "tfidf" or "tokens". With our code
that is `load_exported(...).view(texts)`. Without it, the tf-idf weights are scikit-learn's, as `pmapdp/data/tfidf.py`
shows: a `TfidfVectorizer` with the vocabulary and `idf_` of the file, its columns filled up with zeros.

How long such a file can be read: JAX promises that a program runs on a JAX up to six months newer and up to three
weeks older than the one that exported it (docs.jax.dev, "Exporting and serializing staged-out computations",
section on compatibility guarantees). For longer keep the checkpoint, and export it again.
"""

import contextlib
import dataclasses
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp import __version__
from pmapdp.data.dataset import DataSet
from pmapdp.data.tfidf import FEATURES
from pmapdp.data.tokens import LENGTH
from pmapdp.errors import UserError, reason
from pmapdp.export.read import ARRAYS, CHECKSUMS, FORMAT, FORMAT_VERSION, METADATA, PROGRAM, TEXT, checksums
from pmapdp.files import require_writable, write_file
from pmapdp.job import make_task
from pmapdp.models.layers import Context
from pmapdp.registry import load_data, view_of, viewed
from pmapdp.state import Task, TrainState, count_parameters
from pmapdp.trained import load_run, refuse_values

PLATFORMS = ("cpu", "cuda", "tpu")
INPUTS: dict[str, dict[str, Any]] = {
    "images": {"dtype": "uint8", "shape": ["batch", 28, 28, 1]},
    "tfidf": {"dtype": "float32", "shape": ["batch", FEATURES]},
    "tokens": {"dtype": "int32", "shape": ["batch", LENGTH]},
}
READABLE_BY_ALL = 0o644 << 16  # where a zip keeps the permissions of a file
METRICS = ("test_loss", "test_accuracy", "test_examples")


def from_workdir(
    workdir: str, path: str | Path, data_dir: str | None = None, *, model: Any = None, data: DataSet | None = None
) -> dict[str, Any]:
    """Write the model of the newest checkpoint of a run; returns what the file says of it.

    Args:
        workdir: folder of the run.
        path: of the file.
        data_dir: folder of data sets, for the vocabulary of a model of texts; default: as in training.
        model, data: where `train` was given them as Python values.
    """
    config, state, metrics = load_run(workdir, model)
    if data is None:
        refuse_values(workdir, dataset=config.dataset)
    require_writable(path)
    task = make_task(config, model)
    data, view = viewed(data or load_data(config.dataset, data_dir or config.data_dir), task.model)
    metadata = {
        "model": config.model,
        "recipe": config.recipe,
        "dataset": config.dataset,
        "labels": data.classes,
        "step": int(state.step),
        # A checkpoint from the middle of an epoch has none of its own, only those of the epoch before.
        "metrics": {name: metrics[name] for name in METRICS} if metrics.get("step") == int(state.step) else {},
    }
    export_model(task, state, path, metadata=metadata, view=view, inputs=data.train.inputs)
    return metadata


def export_model(
    task: Task,
    state: TrainState,
    path: str | Path,
    *,
    metadata: dict[str, Any],
    view: Any = None,
    inputs: np.ndarray | None = None,
) -> None:
    """Write the model of `state` to the zip `path`, which is there whole or not at all.

    Args:
        task: what was trained.
        state: `TrainState` on the host.
        path: overwritten if it exists.
        metadata: JSON to keep beside the model; `labels` are the names of the C classes, empty for their numbers.
        view: of a model of texts, the `Tfidf` or `Tokens` that was fitted to the training set.
        inputs: `[n, ...]` as the model takes them; default: images as MNIST's, or what the view gives.

    Raises:
        UserError: `path` cannot be written, or the parameters are no finite numbers.
    """
    leaves, tree = jax.tree.flatten_with_path((state.params, state.batch_stats))
    names = ["/".join(str(key.key) for key in keys[1:]) for keys, _ in leaves]
    arrays = {name: np.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise UserError("parameters of this model are infinite or nan: train it again with a lower --learning-rate")

    def forward(arrays: dict[str, jax.Array], inputs: jax.Array) -> dict[str, jax.Array]:
        params, batch_stats = jax.tree.unflatten(tree, [arrays[name] for name in names])
        logits = nnx.merge(task.model_structure(), params, batch_stats)(inputs, Context())
        logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
        return {"logits": logits, "probabilities": jax.nn.softmax(logits)}

    kind = view_of(task.model)
    takes = INPUTS[kind]
    if inputs is not None:
        takes = {"dtype": inputs.dtype.name, "shape": ["batch", *inputs.shape[1:]]}
    shape = jax.export.symbolic_shape(", ".join(map(str, takes["shape"])))
    inputs_type = jax.ShapeDtypeStruct(shape, takes["dtype"])
    with jax.enable_x64(task.dtype == "float64"), short_locations():
        try:
            model = jax.export.export(jax.jit(forward), platforms=PLATFORMS)(arrays, inputs_type)
        except Exception as error:
            raise UserError(
                f"the model cannot be exported for any number of inputs ({reason(error)}): use, for example, "
                "inputs.shape[0] in it instead of len(inputs)"
            ) from error
        program = bytes(model.serialize())

    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "pmapdp": __version__,
        "jax": jax.__version__,
        "calling_convention_version": model.calling_convention_version,
        "platforms": PLATFORMS,
        "dtype": task.dtype,
        "view": kind,
        "input": takes,
        "parameters": count_parameters(state.params),
        "arrays": names,
        **metadata,
        "labels": list(metadata["labels"]) or [str(number) for number in range(model.out_avals[0].shape[-1])],
    }
    files = {METADATA: json.dumps(metadata, indent=2).encode(), PROGRAM: program}
    files |= {f"{ARRAYS}{name}.npy": npy_bytes(array) for name, array in arrays.items()}
    for field in dataclasses.fields(view) if view else ():  # an array as NumPy's, a list as JSON
        value = getattr(view, field.name)
        if isinstance(value, np.ndarray):
            files[f"{TEXT}{field.name}.npy"] = npy_bytes(value)
        else:
            files[f"{TEXT}{field.name}.json"] = json.dumps(value, ensure_ascii=False).encode()
    write_file(path, zip_bytes(files))


def zip_bytes(files: dict[str, bytes]) -> bytes:
    """A zip of files (name to content) and their checksums; the same files make the same bytes."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for name, content in (files | {CHECKSUMS: checksums(files)}).items():
            member = zipfile.ZipInfo(name)  # dated 1980
            member.external_attr = READABLE_BY_ALL
            archive.writestr(member, content)
    return zipped.getvalue()


def npy_bytes(array: np.ndarray) -> bytes:
    """The content of a .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


@contextlib.contextmanager
def short_locations() -> Iterator[None]:
    """JAX notes for every operation where in the source it comes from, with all callers and their folders. That says
    much about the machine that trained, and would make two exports of one model differ: keep the innermost file name.
    """
    options = {"jax_traceback_in_locations_limit": 1, "jax_hlo_source_file_canonicalization_regex": r".*[/\\]"}
    before = {name: getattr(jax.config, name) for name in options}
    try:
        for name, value in options.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
