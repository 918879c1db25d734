"""The networks, one file each, in Flax NNX."""

from flax import nnx

from pmapdp.models.cnn import CNN
from pmapdp.models.convnet import ConvNet
from pmapdp.models.mlp import MLP

MODELS: dict[str, type[nnx.Module]] = {"mlp": MLP, "cnn": CNN, "convnet": ConvNet}
