"""MNIST and Fashion-MNIST, from the four original .gz files or through torchvision.

The files are where torchvision puts them: `DATA_DIR/MNIST/raw` and
`DATA_DIR/FashionMNIST/raw`. Sources: LeCun et al., "Gradient-based learning applied to
document recognition", Proceedings of the IEEE 86(11), 1998; Xiao, Rasul and Vollgraf,
"Fashion-MNIST", arXiv:1708.07747, 2017.
"""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np

from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.files import read_file

# By the name of the data set. torchvision's classes have these names, too.
FOLDERS = {"mnist": "MNIST", "fashion-mnist": "FashionMNIST"}
FILES = [
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
]
# MD5 of the files as distributed, the same that torchvision checks.
CHECKSUMS = {
    "MNIST": [
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ],
    "FashionMNIST": [
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ],
}
CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
}


def load(name: str, data_dir: Path) -> DataSet:
    """Read 60,000 training and 10,000 test images `[n, 28, 28, 1]` uint8.

    `data_dir` is torchvision's `root`.
    """
    folder = FOLDERS[name]
    paths = [data_dir / folder / "raw" / file for file in FILES]
    if all(map(os.path.isfile, paths)):
        arrays = list(map(read_idx, paths, CHECKSUMS[folder]))
    else:
        arrays = download(name, data_dir)
    images, labels, test_images, test_labels = arrays
    train = Split(images[..., None], labels.astype(np.int32))
    test = Split(test_images[..., None], test_labels.astype(np.int32))
    return DataSet(train, test, CLASSES[name])


def read_idx(path: Path, checksum: str) -> np.ndarray:
    """Read the array of bytes in a gzipped IDX file, whose MD5 must be `checksum`."""
    packed = read_file(path, advice="make it readable, or name another --data-dir")
    md5 = hashlib.md5(packed, usedforsecurity=False).hexdigest()
    if md5 != checksum:
        raise UserError(
            f"{path} is damaged: its MD5 is {md5}, not {checksum}; delete it and "
            "start again to download it anew"
        )
    content = gzip.decompress(packed)
    # Byte 3 is the number of axes. Their sizes follow, then the numbers of the array.
    shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + shape.nbytes).reshape(shape)


def download(name: str, data_dir: Path) -> list[np.ndarray]:
    """Get the same four arrays from torchvision.

    It downloads the files, or reads what it unpacked earlier.
    """
    missing = f"--dataset {name} is not in {data_dir / FOLDERS[name] / 'raw'}"
    advice = (
        "put the four .gz files there, name another --data-dir, or use --dataset digits"
    )
    try:
        from torchvision import datasets
    except ImportError:
        raise UserError(
            f"{missing}: run pip install torchvision, which downloads it, {advice}"
        ) from None
    data_set = getattr(datasets, FOLDERS[name])
    try:
        train = data_set(data_dir, train=True, download=True)
        test = data_set(data_dir, train=False, download=True)
    # No network, no space, a read-only folder, a wrong checksum.
    except (OSError, RuntimeError) as error:
        cause = " ".join(str(error).split())
        raise UserError(
            f"{missing} and could not be downloaded ({cause}): {advice}"
        ) from None
    tensors = [train.data, train.targets, test.data, test.targets]
    return [tensor.numpy() for tensor in tensors]
