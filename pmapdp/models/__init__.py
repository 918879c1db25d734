"""The networks, one file each, in Flax NNX."""

from collections.abc import Callable

from flax import nnx

from pmapdp.models.cnn import CNN
from pmapdp.models.convnet import ConvNet
from pmapdp.models.mlp import MLP

MODELS: dict[str, Callable[..., nnx.Module]] = {"mlp": MLP, "cnn": CNN, "convnet": ConvNet}
