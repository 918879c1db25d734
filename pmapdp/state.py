"""The train state: one pytree without any device axis, the same for every strategy and any number of devices.

Lesson 05 teaches this file. It also has the task: the built model, the loss and the
update rule of a training step.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
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
    """The arrays of training, as nested dictionaries: all that changes, and the model's constants."""

    step: Any  # [] int32, updates made so far
    params: Any  # what is trained
    model_state: Any  # the model's other arrays: running statistics, constants, parameters that are not trained
    optimizer_state: Any  # optax's


@dataclass(frozen=True, eq=False)
class Task:
    """The model, its loss and the update rule, and nothing about devices."""

    model: nnx.Module  # built, its arrays on the host
    optimizer: optax.GradientTransformation = field(
        default_factory=optax.set_to_zero
    )  # enough to evaluate
    seed: int = 0  # of the dropout masks
    dtype: str = "float32"  # of the computation
    loss: Callable[..., Any] = cross_entropy  # (model, batch) to `MetricSums`
    accumulate: int = 1  # micro-batches per device and update
    trainable: Any = nnx.Param  # a filter of Flax

    @property
    def name(self) -> str:
        """Return the name of the model's class."""
        return type(self.model).__name__

    @property
    def input_axes(self) -> tuple[str, ...]:
        """Return the names of the axes of the model's inputs: its `input_axes`, or only the examples."""
        return getattr(self.model, "input_axes", ("batch",))

    @property
    def classifies(self) -> bool:
        """Return True if the loss is the cross-entropy, so that the model gives logits of classes."""
        return getattr(self.loss, "func", self.loss) is cross_entropy

    def arrays_of(self, model: nnx.Module) -> tuple[Any, Any]:
        """Return the arrays of a model of this structure: `params` and `model_state`."""
        params, _, model_state = nnx.state(model, self.trainable, nnx.RngState, ...)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(model_state)

    @functools.cached_property
    def constant(self) -> tuple[nnx.GraphDef[nnx.Module], Any]:
        """Return the model's structure and its random streams, which no layer may advance (`custom/model.py`)."""
        parts: Any = nnx.split(self.model, self.trainable, nnx.RngState, ...)
        return parts[0], parts[2]

    def model_with(self, params: Any, model_state: Any) -> nnx.Module:
        """Return a model with these arrays. Its variables are new, because a layer may assign to them."""
        structure, random = self.constant
        arrays = jax.tree.map(
            jnp.asarray, (params, random, model_state)
        )  # NumPy's would refuse the assignment
        return nnx.merge(structure, *arrays, copy=True)


def build(
    model: Callable[..., nnx.Module], seed: int = 0, dtype: str = "float32"
) -> nnx.Module:
    """Build a network with its initial parameters and exact layers, on the host.

    Args:
        model: a class or function that takes `rngs`, and, if it names them, `dtype` and
            `param_dtype`.
        seed: determines the initial parameters.
        dtype: type of the computation; parameters, optimizer state and all-reduce stay
            in float32 under bfloat16.
    """
    param_dtype = "float64" if dtype == "float64" else "float32"
    types = {"dtype": jnp.dtype(dtype), "param_dtype": jnp.dtype(param_dtype)}
    with use_host(), jax.transfer_guard("allow"):
        # Not under jit: there Flax would treat a constant array that the model keeps as
        # part of its structure.
        built = model(
            rngs=nnx.Rngs(seed),
            **{name: each for name, each in types.items() if takes(model, name)},
        )
        structure, arrays = nnx.split(built)
        return exchange(nnx.merge(structure, jax.device_get(arrays)))


def takes(model: Callable[..., nnx.Module], name: str) -> bool:
    """Return True if a class or function has an argument of this name."""
    function: Any = model.func if isinstance(model, functools.partial) else model
    if isinstance(function, type):
        function = getattr(function, "__init__")  # noqa: B009 (a class of Flax itself seems to take any argument)
    parameters = inspect.signature(function).parameters
    return name in parameters or any(
        each.kind is each.VAR_KEYWORD for each in parameters.values()
    )


def use_host() -> contextlib.AbstractContextManager[Any]:
    """Put new arrays on a CPU, so that no accelerator has to hold a whole model."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS names only accelerators
        return contextlib.nullcontext()


def initial_state(task: Task) -> TrainState:
    """Return the state before the first update."""
    params, model_state = task.arrays_of(task.model)
    return TrainState(
        np.zeros((), np.int32), params, model_state, task.optimizer.init(params)
    )


def create_state(task: Task, sharding: Any = None) -> TrainState:
    """Return the state before the first update as NumPy arrays, or placed if you give a sharding.

    Args:
        task: what is trained.
        sharding: one for all arrays, or a pytree of them like the state. Each device
            gets only its shards.
    """
    with use_host(), jax.transfer_guard("allow"):
        state = jax.device_get(initial_state(task))
    return state if sharding is None else jax.device_put(state, sharding)


def named_leaves(*trees: Any) -> dict[str, Any]:
    """Return the leaves of some trees by name, for example `layers.0.kernel`."""
    leaves = [
        leaf for tree in trees for leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in leaves
    }


@jax.jit
def is_finite(state: TrainState) -> jax.Array:
    """Return `[]`, True if all numbers that an update computes are finite. A model may keep an infinite constant."""
    computed = [
        jnp.isfinite(leaf).all()
        for leaf in jax.tree.leaves((state.params, state.optimizer_state))
    ]
    return jnp.stack(
        [
            *computed,
            *(~jnp.isnan(leaf).any() for leaf in jax.tree.leaves(state.model_state)),
        ]
    ).all()
