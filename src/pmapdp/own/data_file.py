"""A data set of one's own in an .npz file: `python -m pmapdp.train --dataset my_data.npz`."""

from pathlib import Path
from typing import Any

import numpy as np

from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import reason
from pmapdp.files.reading import open_file

ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")


def data_from_file(path: Path) -> DataSet:
    """The data set in an .npz file.

    Raises:
        UserError: it cannot be read or lacks an array.
    """
    with open_file(path, advice=f"write it with numpy.savez(file, {', '.join(ARRAYS)})") as opened:
        try:
            with np.lib.npyio.NpzFile(opened) as file:  # refuses Python objects: they are code
                arrays = {name: file[name] for name in ARRAYS}
                classes = tuple(map(str, file["classes"])) if "classes" in file else ()
        except Exception as error:  # NumPy has several errors for damaged bytes
            raise ValueError(reason(error)) from None
    train, test = (Split(arrays[f"{part}_inputs"], arrays[f"{part}_labels"]) for part in ("train", "test"))
    return DataSet(train, test, classes)


def own_files(config: Any) -> list[str]:
    """The files of the user's own that a configuration names: that of its model, and that of its data set."""
    model, dataset = config.model, config.dataset
    return [model.rpartition(":")[0]] * (".py:" in model) + [dataset] * dataset.endswith(".npz")
