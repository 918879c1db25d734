"""A trained model as one portable file, written by `python -m pmapdp.export WORKDIR model.zip`.

The file is a zip without compression, and NumPy takes it for one of its own (.npz):

    metadata.json    labels, metrics, shapes and types, versions
    model.jax        the network as `jax.export` serialized it: StableHLO for CPU, CUDA and TPU, any batch size
    arrays/*.npy     parameters and running statistics
    view.json        of a text model: the vocabulary and, for tf-idf weights, the idf weights

Nothing in it is a pickle, but the network is a program: run it only if you trust whoever made the file. It needs none
of our code. JAX (with flatbuffers) and NumPy are enough:

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

`outputs` also has "probabilities" `[n, C]`. A model that is no classifier has what its method `predict(inputs)`
returns, or else its call: one array as "outputs", several by their names. `loss.jax` gives the sums of the model's loss
and metrics from the arrays, inputs, labels and weights of examples. A model trained in float64
(metadata["dtype"]) first needs `jax.config.update("jax_enable_x64", True)`. With our code it is
`pmapdp.export.read.load_exported`.

A text model takes what its view, metadata["view"], makes of strings. With our code that is
`load_exported(...).view(texts)`. Without it, "tfidf" is scikit-learn's `TfidfVectorizer` with the vocabulary and `idf_`
of view.json, its columns filled up with zeros, and `pmapdp/data/tokens.py` shows "tokens".

JAX promises that a program runs on a JAX up to six months newer and up to three weeks older than the one that exported
it (docs.jax.dev, "Exporting and serializing staged-out computations", section on compatibility guarantees). For longer
keep the checkpoint, and export it again.
"""

import dataclasses
import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from flax import nnx

from pmapdp import __version__
from pmapdp.custom.data import make_data_set
from pmapdp.data.batches import Batch
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError, reason, require
from pmapdp.export.read import ARRAYS, FORMAT, LOSS, METADATA, PROGRAM, VIEW, Exported
from pmapdp.files import MODEL, check_output, write_file
from pmapdp.loss import named_sums
from pmapdp.registry import FEATURIZERS, featurize, featurizer_of, load_data
from pmapdp.run.checkpoints import load_state
from pmapdp.run.workdir import read_config
from pmapdp.state import Task, TrainState, count_parameters
from pmapdp.train import trained_task

PLATFORMS = ("cpu", "cuda", "tpu")
# JAX notes for every operation where in the source it comes from, with the folders. That says much about the machine
# that trained, and would make two exports of one model differ.
LOCATIONS = "jax_traceback_in_locations_limit"


def export_run(
    workdir: str,
    path: str | Path,
    data_dir: str | None = None,
    *,
    best: bool = False,
    data: DataSet | None = None,
    **own: Any,
) -> dict[str, Any]:
    """Write the model of the newest checkpoint of a run, or of that of its `best` epoch; returns what the file says of
    it.

    Args:
        workdir: folder of the run.
        path: of the file.
        data_dir: folder of data sets, for the vocabulary of a text model; default: as in training.
        data, own: `data`, `model`, `loss`, `metrics` and `optimizer` where `train` was given them as Python values.
    """
    config = read_config(workdir)
    file = check_output("FILE", str(path), MODEL)
    assert file is not None
    # Before code of the user's, which may change the current folder.
    folder = os.path.abspath(workdir)
    with jax.enable_x64(config.dtype == "float64"):
        data = make_data_set(data) if data is not None else load_data(config.dataset, data_dir or config.data_dir)
        task = trained_task(config, **own)
        state, step, progress = load_state(folder, task, best=best)
    metrics = progress["last"]
    data, view = featurize(data, task.model)
    metadata = {
        "model": config.model,
        "recipe": config.recipe,
        "dataset": config.dataset,
        "labels": data.classes,
        "step": int(state.step),
        # A checkpoint from the middle of an epoch has none of its own, only those of the epoch before.
        "metrics": {name: metrics[name] for name in ("validation", "test") if name in metrics}
        if metrics.get("step") == step
        else {},
    }
    example = data.train.take(np.arange(1))
    export_model(task, state, file, examples=example, metadata=metadata, view=view)
    return metadata


def export_model(
    task: Task, state: TrainState, path: str | Path, *, examples: Split, metadata: dict[str, Any], view: Any = None
) -> None:
    """Write the model of `state` to the zip `path`, which is there whole or not at all.

    Args:
        task: what was trained.
        state: `TrainState` on the host.
        path: overwritten if it exists.
        examples: one or more as the model takes them; it is asked, to see whether it answers with numbers.
        metadata: JSON to keep beside the model; `labels` are the names of the C classes, empty for their numbers.
        view: of a text model, the `Tfidf` or `Tokens` that was fitted to the training set.

    Raises:
        UserError: `path` cannot be written, or the parameters or the answers are no finite numbers.
    """
    require(TrainState, "state", state, "that of pmapdp.train.load_run(workdir)")
    require(Split, "examples", examples, "pmapdp.data.dataset.Split(inputs, labels)")
    require(dict, "metadata", metadata, "{'labels': ()}")
    leaves, tree = jax.tree.flatten_with_path((state.params, state.model_state))
    names = ["/".join(str(key.key) for key in keys[1:]) for keys, _ in leaves]
    arrays = {name: np.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
    if not all(np.isfinite(array).all() for array in arrays.values()):
        raise UserError("parameters of this model are infinite or nan: train it again with a lower --learning-rate")

    def forward(arrays: dict[str, jax.Array], inputs: Any) -> dict[str, jax.Array]:
        model = built(arrays)
        if not task.classifies:
            asked = getattr(model, "predict", None)
            return named_outputs(model(inputs) if asked is None else asked(inputs))
        outputs = model(inputs)
        logits = outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))
        return {"logits": logits, "probabilities": jax.nn.softmax(logits)}

    def sums(arrays: dict[str, jax.Array], inputs: Any, labels: jax.Array, weights: jax.Array) -> dict[str, Any]:
        indices = jnp.zeros(weights.shape, jnp.int32)  # which examples they are matters in training alone
        return named_sums(task.loss(built(arrays), Batch(inputs, labels, indices, weights)))

    def built(arrays: dict[str, jax.Array]) -> nnx.Module:
        return task.model_with(*jax.tree.unflatten(tree, [arrays[name] for name in names]))

    def of_any_number(array: np.ndarray) -> jax.ShapeDtypeStruct:
        shape = ", ".join(["batch", *map(str, array.shape[1:])])
        return jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), array.dtype)

    scope = jax.export.SymbolicScope()
    inputs, labels, weights = jax.tree.map(of_any_number, (examples.inputs, examples.labels, np.ones(1, np.float32)))
    locations = getattr(jax.config, LOCATIONS)
    jax.config.update(LOCATIONS, 0)
    try:
        with jax.enable_x64(task.dtype == "float64"):
            model = jax.export.export(jax.jit(forward), platforms=PLATFORMS)(arrays, inputs)
            loss = jax.export.export(jax.jit(sums), platforms=PLATFORMS)(arrays, inputs, labels, weights)
            programs = {PROGRAM: bytes(model.serialize()), LOSS: bytes(loss.serialize())}
    except Exception as error:
        raise UserError(
            f"the model cannot be exported for any number of inputs ({reason(error)}): use, for example, "
            "inputs.shape[0] in it instead of len(inputs)"
        ) from error
    finally:
        jax.config.update(LOCATIONS, locations)

    for output in model.out_avals:
        if output.shape[:1] != jax.tree.leaves(inputs)[0].shape[:1]:
            raise UserError(
                f"the model answers {[*output.shape]}, not one row for each example: return [n, ...] arrays"
            )
    C = model.out_avals[0].shape[-1] if task.classifies else 0
    classes = list(map(str, metadata.get("labels", ()))) or [str(number) for number in range(C)]
    if task.classifies and len(classes) != C:
        raise UserError(f"the model has {C} classes, and the data set names {len(classes)}: name all of them, or none")
    metadata = {
        "format": FORMAT,
        "pmapdp": __version__,
        "jax": jax.__version__,
        "platforms": PLATFORMS,
        "dtype": task.dtype,
        "view": featurizer_of(task.model),
        "input": jax.tree.map(lambda x: {"dtype": x.dtype.name, "shape": ["batch", *x.shape[1:]]}, examples.inputs),
        "classifies": task.classifies,
        "parameters": count_parameters(state.params),
        "arrays": names,
        **metadata,
        "labels": classes,
    }
    Exported(metadata, model, arrays).outputs(examples.inputs)  # finite parameters may be too large for finite answers
    files = {METADATA: json.dumps(metadata, indent=2).encode(), **programs}
    if view is not None:
        kind = FEATURIZERS.get(featurizer_of(task.model), type(None))
        require(kind, "view", view, "the one that was fitted to the training texts, or None")
        files[VIEW] = json.dumps(dataclasses.asdict(view), ensure_ascii=False).encode()
    zipped = io.BytesIO()
    np.savez(zipped, **{f"{ARRAYS}{name}": array for name, array in arrays.items()})  # type: ignore[arg-type]
    with zipfile.ZipFile(zipped, "a") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # dated 1980 like NumPy's: the same model, the same bytes
    write_file(path, zipped.getvalue())


def named_outputs(outputs: Any) -> dict[str, jax.Array]:
    """What a model that is no classifier answers, by name: one array is `outputs`, those of a tuple are numbered."""
    if isinstance(outputs, tuple | list):
        return {f"output {number}": each for number, each in enumerate(outputs)}
    return outputs if isinstance(outputs, dict) else {"outputs": outputs}
