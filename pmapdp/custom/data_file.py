"""A data set of one's own in an .npz file: `python -m pmapdp.train --dataset my_data.npz`.

It holds `train_inputs` and `train_labels`, and may hold `train_weights`, the same of `test` and of `validation`, and
`classes`, the names of the classes.
"""

from pathlib import Path
from typing import Any

from pmapdp.custom.data_sets import as_data_set
from pmapdp.data.dataset import DataSet
from pmapdp.files import open_arrays

ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")


def data_from_file(path: Path) -> DataSet:
    """The data set in an .npz file.

    Raises:
        UserError: it cannot be read or lacks an array.
    """
    with open_arrays(path, advice=f"write it with numpy.savez(file, {', '.join(ARRAYS)})") as file:
        arrays = {name: file[name] for name in file}
        parts: dict[str, Any] = {}
        for name in ("train", "test", "validation"):
            inputs, labels, weights = (f"{name}_{each}" for each in ("inputs", "labels", "weights"))
            if name == "train" or inputs in arrays or labels in arrays:
                parts[name] = (arrays[inputs], arrays[labels], *([arrays[weights]] if weights in arrays else []))
    return as_data_set(DataSet(**parts, classes=tuple(map(str, arrays.get("classes", ())))))


def own_files(config: Any) -> list[str]:
    """The files of the user's own that a configuration names: of its model, data set, optimizer and schedule."""
    named = (config.model, config.dataset, config.optimizer, config.schedule)
    return [each.rpartition(":")[0] for each in named if ".py:" in each] + [config.dataset] * (
        config.dataset.endswith(".npz")
    )
