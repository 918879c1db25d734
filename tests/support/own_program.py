"""A program that trains a model and data of its own; tests append what it does: `loss(**settings)`."""

PROGRAM = """
import numpy as np
from flax import nnx
from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.train import train

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(x.reshape(len(x), -1)[:, :6])

def points(n, seed):
    x = np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)
    return Split(x, x[:, :3].argmax(1))

def loss(data=DataSet(points(100, 1), points(40, 2)), **settings):
    settings = {"epochs": 1, "global_batch_size": 20, "progress": False, "compile_cache": False} | settings
    result = train(Config(**settings), model=Net, data=data)
    return round(result.epochs[-1]["test"]["loss"], 5)
"""
