"""The networks, one file each, in Flax NNX."""

from collections.abc import Callable

from flax import nnx

from pmapdp.models.cnn import CNN
from pmapdp.models.convnet import ConvNet
from pmapdp.models.mlp import MLP
from pmapdp.models.text_mlp import TextMLP
from pmapdp.models.transformer import Transformer

MODELS: dict[str, Callable[..., nnx.Module]] = {
    "mlp": MLP,
    "cnn": CNN,
    "convnet": ConvNet,
    "text_mlp": TextMLP,
    "transformer": Transformer,
}
# What a model takes: images, or one of the views of texts in `pmapdp.data`.
VIEWS = {"mlp": "images", "cnn": "images", "convnet": "images", "text_mlp": "tfidf", "transformer": "tokens"}
