"""The train state: one pytree without any device axis, the same for every strategy and any number of devices."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from pmapdp.config import Config
from pmapdp.models import MODELS


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that changes during training, as nested dictionaries of arrays.

    Attributes:
        step: `[]` int32, updates made so far.
        params: the model's parameters.
        batch_stats: running statistics of batch norm; empty where there is none.
        optimizer_state: optax' state.
    """

    step: Any
    params: Any
    batch_stats: Any
    optimizer_state: Any


@dataclass(frozen=True)
class Task:
    """What is trained, and nothing about where: model, objective and update rule. Static inside compiled steps.

    Attributes:
        model: name of the model.
        optimizer: the update rule.
        seed: from which parameters and dropout masks follow.
        dtype: type of the computation.
        label_smoothing: share of the target probability spread over all classes.
        accumulate: micro-batches per device and update.
    """

    model: str
    optimizer: optax.GradientTransformation
    seed: int = 0
    dtype: str = "float32"
    label_smoothing: float = 0.0
    accumulate: int = 1

    @property
    def param_dtype(self) -> str:
        """Type of parameters, optimizer state and all-reduce: float32 also under bfloat16."""
        return "float64" if self.dtype == "float64" else "float32"

    def build_model(self) -> nnx.Module:
        """A new model with its initial parameters."""
        return MODELS[self.model](
            rngs=nnx.Rngs(self.seed), dtype=jnp.dtype(self.dtype), param_dtype=jnp.dtype(self.param_dtype)
        )

    @property
    def input_axes(self) -> tuple[str, ...]:
        """Logical names of the axes of the model's inputs: its own `input_axes`, or the examples alone."""
        return getattr(MODELS[self.model], "input_axes", ("batch",))

    def model_structure(self) -> nnx.GraphDef:
        """The model without its arrays; no memory is used for them."""
        return nnx.split(nnx.eval_shape(self.build_model))[0]


def make_task(config: Config, optimizer: optax.GradientTransformation) -> Task:
    """What is trained, from the configuration."""
    return Task(config.model, optimizer, config.seed, config.dtype, config.label_smoothing, config.accumulate)


def initial_state(task: Task) -> TrainState:
    """The state before the first update; a pure function of the task, which may be compiled with any sharding."""
    model = task.build_model()
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    batch_stats = nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))
    return TrainState(jnp.zeros((), jnp.int32), params, batch_stats, task.optimizer.init(params))


def create_state(task: Task, sharding: Any = None) -> TrainState:
    """The state before the first update.

    Args:
        task: what is trained.
        sharding: where the arrays are made, one sharding or a pytree of them like the state; with None they are
            NumPy arrays on the host.
    """
    if sharding is None:
        return jax.device_get(jax.jit(initial_state, static_argnums=0)(task))
    return jax.jit(initial_state, static_argnums=0, out_shardings=sharding)(task)


def count_parameters(params: Any) -> int:
    """Number of trainable scalars."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
