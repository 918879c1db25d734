"""What tells the content of data sets apart, so that a run is not resumed with other data."""

import hashlib
import json
import math

import jax
import numpy as np

from pmapdp.custom.training import own_name
from pmapdp.data.dataset import DataSet

LARGE = 2**30  # bytes; SHA-256 takes a second for each GB
SAMPLE = 2**26  # bytes
SAMPLED_EXAMPLES = 64


def sampled(array: np.ndarray) -> tuple[np.ndarray, int]:
    """An array, or of one of more than 1 GiB every k-th row, 64 MiB in all; and k. A file of it is not read whole."""
    if array.nbytes <= LARGE:
        return array, 1
    every = math.ceil(array.nbytes / SAMPLE)
    return array[::every], every


def fingerprint(data: DataSet) -> str:
    """What tells the content of data sets apart: 16 digits of the SHA-256 of all texts, inputs, labels and weights, and
    the name of the augmentation.

    Of an array of more than 1 GiB every k-th example is taken, of a part that is read example by example 64; the
    largest k is named.
    """
    content, most = hashlib.sha256(), 1
    for part in data.parts.values():
        if not isinstance(part, tuple):  # read example by example
            content.update(f"{part.examples} ".encode())
            most = max(most, math.ceil(part.examples / SAMPLED_EXAMPLES))
            part = part.take(np.arange(0, part.examples, math.ceil(part.examples / SAMPLED_EXAMPLES)))
        for each in jax.tree.leaves(part, is_leaf=lambda each: isinstance(each, list)):
            if isinstance(each, list):
                content.update(json.dumps(each).encode())
            else:
                some, every = sampled(each)
                content.update(f"{each.dtype} {each.shape} ".encode())
                content.update(np.ascontiguousarray(some).data)
                most = max(most, every)
    sample = f", from one in {most} examples" if most > 1 else ""
    return content.hexdigest()[:16] + sample + (f", augmented by {own_name(data.augment)}" if data.augment else "")
