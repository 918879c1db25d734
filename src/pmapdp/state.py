"""The train state: one pytree without any device axis, the same for every strategy and any number of devices.

Beside it the task: the model, loss and update rule that a training step is made from.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from pmapdp.loss import cross_entropy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that changes during training, as nested dictionaries of arrays.

    Attributes:
        step: `[]` int32, updates made so far.
        params: the model's parameters.
        batch_stats: running statistics of batch norm; empty where there is none.
        optimizer_state: optax's state.
    """

    step: Any
    params: Any
    batch_stats: Any
    optimizer_state: Any


@dataclass(frozen=True)
class Task:
    """What is trained, and nothing about where: model, loss and update rule. Static inside compiled steps.

    Attributes:
        model: builds the network: a function of `rngs`, `dtype` and `param_dtype`, for example the class `CNN`. The
            network takes (inputs, `Context`), and has its parameters in `nnx.Param`.
        optimizer: the update rule.
        seed: determines parameters and dropout masks.
        dtype: type of the computation.
        loss: a function of (model, batch, context) that returns `MetricSums`.
        accumulate: micro-batches per device and update.
        transform: applied to the loss function before it is differentiated. It must return an equal function; for
            simulated devices `pmapdp/cpu/` has one that computes convolutions faster.
    """

    model: Callable[..., nnx.Module]
    optimizer: optax.GradientTransformation
    seed: int = 0
    dtype: str = "float32"
    loss: Callable[..., Any] = cross_entropy
    accumulate: int = 1
    transform: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function

    @property
    def param_dtype(self) -> str:
        """Type of parameters, optimizer state and all-reduce: float32 also under bfloat16."""
        return "float64" if self.dtype == "float64" else "float32"

    def build_model(self) -> nnx.Module:
        """A new model with its initial parameters."""
        return self.model(
            rngs=nnx.Rngs(self.seed), dtype=jnp.dtype(self.dtype), param_dtype=jnp.dtype(self.param_dtype)
        )

    @property
    def input_axes(self) -> tuple[str, ...]:
        """Logical names of the axes of the model's inputs: its own `input_axes`, or the examples alone."""
        return getattr(self.model, "input_axes", ("batch",))

    def model_structure(self) -> nnx.GraphDef:
        """The model without its arrays; no memory is used for them."""
        return nnx.split(nnx.eval_shape(self.build_model))[0]


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
    # This program runs once: to optimize it takes seconds, and saves none.
    options = {"xla_backend_optimization_level": 0}
    state = jax.jit(initial_state, static_argnums=0, out_shardings=sharding, compiler_options=options)(task)
    return jax.device_get(state) if sharding is None else state


def count_parameters(params: Any) -> int:
    """Number of trainable scalars."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
