"""The train state: one pytree without any device axis, the same for every strategy and any number of devices.

Lesson 03 teaches this file. It also has the task: the built model, the loss and the update rule of a training step.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.layers import exchange
from pmapdp.loss import cross_entropy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that changes during training, and the model's constants, as nested dictionaries of arrays.

    Attributes:
        step: `[]` int32, updates made so far.
        params: what is trained.
        model_state: all other arrays of the model: running statistics, constants, parameters that are not trained.
        optimizer_state: optax's state.
    """

    step: Any
    params: Any
    model_state: Any
    optimizer_state: Any


NO_UPDATES = optax.set_to_zero()


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained, and nothing about where.

    Attributes:
        model: the built network, its arrays on the host; `build` makes one.
        optimizer: the update rule.
        seed: determines the dropout masks.
        dtype: type of the computation.
        loss: a function of (model, batch) that returns `MetricSums`.
        accumulate: micro-batches per device and update.
        trainable: which variables are trained, a filter of Flax.
    """

    model: nnx.Module
    optimizer: optax.GradientTransformation = NO_UPDATES
    seed: int = 0
    dtype: str = "float32"
    loss: Callable[..., Any] = cross_entropy
    accumulate: int = 1
    trainable: Any = nnx.Param

    @property
    def name(self) -> str:
        """The name of the model's class."""
        return type(self.model).__name__

    @property
    def input_axes(self) -> tuple[str, ...]:
        """Logical names of the axes of the model's inputs: its own `input_axes`, or the examples alone."""
        return getattr(self.model, "input_axes", ("batch",))

    @property
    def classifies(self) -> bool:
        """True if the loss is the cross-entropy, so that the model gives logits of classes."""
        return getattr(self.loss, "func", self.loss) is cross_entropy

    def arrays_of(self, model: nnx.Module) -> tuple[Any, Any]:
        """Return the arrays of a model of this structure: `params` and `model_state`."""
        params, _, model_state = nnx.state(model, self.trainable, nnx.RngState, ...)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(model_state)

    @functools.cached_property
    def constant(self) -> tuple[nnx.GraphDef[nnx.Module], Any]:
        """The rest of the model: its structure, and its streams of random numbers.

        They never change. A layer that draws from its stream in training is refused (`pmapdp/custom/contract.py`).
        """
        parts: Any = nnx.split(self.model, self.trainable, nnx.RngState, ...)
        return parts[0], parts[2]

    def model_with(self, params: Any, model_state: Any) -> nnx.Module:
        """Return a model with these arrays. Its variables are new, because a layer may assign to them."""
        structure, random = self.constant
        arrays = jax.tree.map(jnp.asarray, (params, random, model_state))  # NumPy's would refuse the assignment
        return nnx.merge(structure, *arrays, copy=True)


def build(model: Callable[..., nnx.Module], seed: int = 0, dtype: str = "float32") -> nnx.Module:
    """Build a network with its initial parameters and exact layers, on the host.

    It isn't built under tracing, because Flax would take a constant that the model keeps for a part of its structure.

    Args:
        model: a class or function that takes `rngs`, and, if it names them, `dtype` and `param_dtype`.
        seed: determines the initial parameters.
        dtype: type of the computation; parameters, optimizer state and all-reduce stay in float32 under bfloat16.
    """
    param_dtype = "float64" if dtype == "float64" else "float32"
    types = {"dtype": jnp.dtype(dtype), "param_dtype": jnp.dtype(param_dtype)}
    with on_the_host(), jax.transfer_guard("allow"):
        built = model(rngs=nnx.Rngs(seed), **{name: each for name, each in types.items() if takes(model, name)})
        structure, arrays = nnx.split(built)
        return exchange(nnx.merge(structure, jax.device_get(arrays)))


def takes(model: Callable[..., nnx.Module], name: str) -> bool:
    """Tell if a class or function has an argument of this name."""
    function: Any = model
    while isinstance(function, functools.partial):
        function = function.func
    # Of a class, because what Flax puts around its __init__ takes any name.
    if isinstance(function, type):
        function = getattr(function, "__init__")  # noqa: B009 (mypy takes it for one of an instance)
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def on_the_host() -> contextlib.AbstractContextManager[Any]:
    """Put new arrays on a CPU, so that no accelerator has to hold a whole model."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS names accelerators alone
        return contextlib.nullcontext()


def initial_state(task: Task) -> TrainState:
    """Return the state before the first update."""
    params, model_state = task.arrays_of(task.model)
    return TrainState(np.zeros((), np.int32), params, model_state, task.optimizer.init(params))


def create_state(task: Task, sharding: Any = None) -> TrainState:
    """Place the state before the first update.

    Args:
        task: what is trained.
        sharding: of the arrays, one for all or a pytree of them like the state; with None they are NumPy arrays on the
            host.
    """
    if sharding is None:
        with on_the_host(), jax.transfer_guard("allow"):
            return jax.device_get(initial_state(task))
    # NumPy's arrays are copied to the devices: what is donated later is not the model's own.
    params, model_state = jax.device_get(task.arrays_of(task.model))
    state = TrainState(np.zeros((), np.int32), params, model_state, jax.eval_shape(task.optimizer.init, params))
    shardings: TrainState = jax.tree.broadcast(sharding, state)
    params = jax.device_put(params, shardings.params)
    return TrainState(
        step=jax.device_put(np.zeros((), np.int32), shardings.step),
        params=params,
        model_state=jax.device_put(model_state, shardings.model_state),
        # Compiled, so that no device ever holds more than its shard.
        optimizer_state=jax.jit(task.optimizer.init, out_shardings=shardings.optimizer_state)(params),
    )


def named_leaves(*trees: Any) -> dict[str, Any]:
    """Return the leaves of some trees by name, for example `layers.0.kernel`."""
    leaves = [leaf for tree in trees for leaf in jax.tree_util.tree_leaves_with_path(tree)]
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def count_parameters(params: Any) -> int:
    """Count the trainable numbers."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


@jax.jit
def is_finite(state: TrainState) -> jax.Array:
    """Tell if the numbers that an update computes are finite, `[]`. A model may keep an infinite constant."""
    computed = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((state.params, state.optimizer_state))]
    return jnp.stack([*computed, *(~jnp.isnan(leaf).any() for leaf in jax.tree.leaves(state.model_state))]).all()
