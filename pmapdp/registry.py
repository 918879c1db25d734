"""The names on the command line.

To add a model or a data set, write its file, import it here, and give it a line below.
"""

import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from flax import nnx

from pmapdp.config import SCHEDULES, Config
from pmapdp.custom.data import load_npz, make_data_set
from pmapdp.custom.images import load_folder
from pmapdp.data import digits, imdb, mnist, random_numbers, reviews
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.data.tfidf import Tfidf
from pmapdp.data.tokens import Tokens
from pmapdp.errors import UserError, YourCodeError, explain_errors, unknown_name
from pmapdp.files import load_from_file
from pmapdp.models.cnn import CNN
from pmapdp.models.convnet import ConvNet
from pmapdp.models.dot_relu_dot import DotReluDot
from pmapdp.models.mlp import MLP, TextMLP
from pmapdp.models.speedrun import Speedrun
from pmapdp.models.transformer import Transformer
from pmapdp.optimizer import OPTIMIZERS

MODELS: dict[str, Callable[..., nnx.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "convnet": ConvNet,
    "text_mlp": TextMLP,
    "transformer": Transformer,
    "speedrun": Speedrun,
    "dot_relu_dot": DotReluDot,
}
# Each is a function of the folder of downloaded data sets.
DATA_SETS: dict[str, Callable[[Path], DataSet]] = {
    "digits": lambda folder: digits.load(),
    "mnist": functools.partial(mnist.load, "mnist"),
    "fashion-mnist": functools.partial(mnist.load, "fashion-mnist"),
    "imdb": imdb.load,
    "reviews": lambda folder: reviews.load(),
    "random_numbers": lambda folder: random_numbers.load(),
}
# What the settings call data that came from Python.
PYTHON_DATA = "arrays"
# The built-in names of a setting, and the function that an error message gives as an
# example of yours.
BUILT_IN: dict[str, tuple[Collection[str], str]] = {
    "model": (MODELS, "Net"),
    "optimizer": (OPTIMIZERS, "make"),
    "schedule": (SCHEDULES, "rate"),
}
# Each turns texts into the inputs of a model. The model's attribute `featurizer` names
# it.
FEATURIZERS: dict[str, Any] = {"tfidf": Tfidf, "tokens": Tokens}


def load_custom(setting: str, name: str) -> Any:
    """Load your model, optimizer or schedule from its file.

    Args:
        setting: A name in `BUILT_IN`.
        name: A name on the command line: `my_file.py:Net`, or a built-in one's.

    Returns:
        Your class or function. None for a built-in one.
    """
    if ".py:" in name:
        return load_from_file(name)
    built_in, example = BUILT_IN[setting]
    if name not in built_in:
        yours = f"my_file.py:{example} (yours; from Python {setting}=...)"
        raise unknown_name(setting, name, [*built_in, yours])
    return None


def parts_from_python(config: Config) -> list[str]:
    """Return the parts that a reader of this run needs, and that no file holds."""
    parts = []
    if config.model not in MODELS and ".py:" not in config.model:
        parts.append("model")
    if config.optimizer not in OPTIMIZERS and ".py:" not in config.optimizer:
        parts.append("optimizer")
    if config.dataset == PYTHON_DATA:
        parts.append("data")
    return parts


def require_python_values(
    names: Collection[str],
    python_values: Mapping[str, Any],
    reader: str,
    *arguments: str,
) -> None:
    """Refuse to read a run without the Python values that it was made from.

    Args:
        names: What the run was given from Python, such as "model".
        python_values: The values that you gave again, by name.
        reader: Module and name of the function that reads the run. The error message
            shows the call to make.
        arguments: The function's other arguments in this call.
    """
    missing = [name for name in names if python_values.get(name) is None]
    if missing:
        module, _, function = reader.rpartition(".")
        values = [repr(argument) for argument in arguments]
        values += [f"{name}=..." for name in missing]
        raise UserError(
            f"this run was given its {' and '.join(missing)} from Python, so give it "
            f"again: from {module} import {function}; "
            f"{function}({', '.join(values)})"
        )


def default_data_dir() -> Path:
    """Return `$PMAPDP_DATA`, or a cache folder in your home.

    Without a home it's in the system's temporary folder.
    """
    home = os.path.expanduser("~")
    if home == "~":  # a user id without an entry, in a container
        home = tempfile.gettempdir()
    cache = os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache")
    return Path(os.environ.get("PMAPDP_DATA") or Path(cache, "pmapdp", "data"))


def load_data(name: str, data_dir: str | None = None) -> DataSet:
    """Read a data set, and download it first if it is missing and that is possible.

    Args:
        name: A built-in data set, or yours: a file `my_data.npz`, a folder of images,
            or a function without arguments in a file, `my_data.py:make`, that returns
            what `train` takes as `data`.
        data_dir: The folder of downloaded data sets. Default: `$PMAPDP_DATA`, or else a
            folder at home.

    Example:
        digits = load_data("digits")
        print(digits.train.inputs.shape)
    """
    if name in DATA_SETS:
        return DATA_SETS[name](Path(data_dir or default_data_dir()))
    if name.endswith(".npz"):
        return load_npz(Path(name))
    if ".py:" in name:
        make = load_from_file(name)
        advice = "correct it where the traceback ends"
        with explain_errors(f"{name} fails", advice, YourCodeError):
            data = make()
        return make_data_set(data)
    # A folder that isn't there gets the message about folders by its slash.
    if name.endswith("/") or os.path.isdir(name):
        return load_folder(Path(name))
    # No file, no folder and no built-in name: a misspelt one.
    yours = "my_data.npz, folder/ or my_data.py:make (yours; from Python data=...)"
    raise unknown_name("dataset", name, [*DATA_SETS, yours])


def featurize(data: DataSet, model: nnx.Module) -> tuple[DataSet, Any]:
    """Turn texts into the arrays that the model takes.

    Returns:
        (data set, featurizer): the featurizer is fitted to the training texts, or None
        if the data are arrays.

    Raises:
        UserError: The model takes arrays, and the data are texts, or vice versa.
    """
    name = getattr(model, "featurizer", "")
    has_texts = isinstance(data.train, Texts)
    if has_texts != (name in FEATURIZERS):
        fitting = [
            f"--model {fitting_name}"
            for fitting_name, network in MODELS.items()
            if hasattr(network, "featurizer") == has_texts
        ]
        advice = f"use {' or '.join(fitting)}, or another --dataset"
        wrong = "takes texts, and the data set holds arrays, such as images"
        if has_texts:
            wrong = "has no featurizer, and the data set holds texts"
            advice += f"; in a model of yours, featurizer = {list(FEATURIZERS)[-1]!r}"
        raise UserError(f"{type(model).__name__} {wrong}: {advice}")
    if not has_texts:
        return data, None
    # Fitted to the training texts alone: test texts would leak into the vocabulary.
    featurizer = FEATURIZERS[name].fit(data.train.texts)
    arrays: dict[str, Any] = {
        name: Split(featurizer(part.texts), part.labels)
        for name, part in data.parts.items()
    }
    return dataclasses.replace(data, **arrays), featurizer
