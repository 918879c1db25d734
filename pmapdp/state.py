"""The train state, one pytree without any device axis, and the task.

The task is the built model, the loss and the optimizer of a training step. Lesson 05
teaches this file.
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

from pmapdp.layers import current_context, make_exact
from pmapdp.loss import cross_entropy


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The arrays of training, as nested dictionaries: `params`, the other arrays of the
    model in `model_state`, and Optax's in `optimizer_state`.

    Attributes:
        step: `[]` int32, the updates made so far.
        params: What is trained.
        model_state: The model's other arrays: running statistics, constants, and
            parameters that are not trained.
        optimizer_state: Optax's.
    """

    step: Any
    params: Any
    model_state: Any
    optimizer_state: Any


@dataclass(frozen=True, eq=False)
class Task:
    """The parts of training that never change, such as model, loss and optimizer.

    They don't depend on the devices. The task has the structure of the model, and the
    `TrainState` has the arrays that an update changes.

    Attributes:
        model: Built, its arrays on the host.
        optimizer: Optax's update rule.
        seed: The seed of the dropout masks.
        dtype: The type of the computation.
        loss: A function of (model, batch) that returns `MetricSums`.
        classifies: True if the loss is the cross-entropy, so that the model gives the
            logits of classes.
        augment: Changes an example in training: (its inputs, a key) -> new inputs.
        accumulate: Micro-batches per device and update.
        trainable: A filter of Flax that chooses the parameters to train.
    """

    model: nnx.Module
    optimizer: optax.GradientTransformation
    seed: int = 0
    dtype: str = "float32"
    loss: Callable[..., Any] = cross_entropy
    classifies: bool = True
    augment: Callable[[Any, jax.Array], Any] | None = None
    accumulate: int = 1
    trainable: Any = nnx.Param

    @property
    def name(self) -> str:
        """Return the name of the model's class."""
        return type(self.model).__name__

    @property
    def input_axes(self) -> tuple[str, ...]:
        """Return the names of the input axes of the model, by default the examples."""
        return getattr(self.model, "input_axes", ("batch",))

    def loss_sums(self, model: nnx.Module, batch: Any) -> Any:
        """Return the sums of the loss over a batch, which training augments first.

        As in dropout, the random keys depend on seed, update and example alone.
        """
        context = current_context()
        if context.train and self.augment is not None:
            keys = context.next_keys()
            inputs = jax.vmap(self.augment)(batch.inputs, keys)
            batch = batch._replace(inputs=inputs)
        return self.loss(model, batch)

    def split_arrays(self, model: nnx.Module) -> tuple[Any, Any]:
        """Return the `params` and `model_state` of a model of this structure."""
        # Without the random streams: keys come from seed, step and example alone.
        params, _, model_state = nnx.state(model, self.trainable, nnx.RngState, ...)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(model_state)

    @functools.cached_property
    def graph_and_streams(self) -> tuple[nnx.GraphDef[nnx.Module], Any]:
        """Return the model's structure and its random streams.

        They're the same in every update, because no layer may advance a stream.
        `custom/` checks this.
        """
        parts: Any = nnx.split(self.model, self.trainable, nnx.RngState, ...)
        return parts[0], parts[2]

    def merge_arrays(self, params: Any, model_state: Any) -> nnx.Module:
        """Return a model with these arrays, the reverse of `split_arrays`.

        Its variables are new, because a layer may assign to them.
        """
        graph, streams = self.graph_and_streams
        # A variable with NumPy's array would refuse the assignment.
        arrays = jax.tree.map(jnp.asarray, (params, streams, model_state))
        return nnx.merge(graph, *arrays, copy=True)


def build(
    model: Callable[..., nnx.Module], seed: int = 0, dtype: str = "float32"
) -> nnx.Module:
    """Build a network with its initial parameters and exact layers, on the host.

    Args:
        model: A class or function that takes `rngs`, and, if it names them, `dtype` and
            `param_dtype`.
        seed: Determines the initial parameters.
        dtype: Type of the computation. Under bfloat16, parameters, optimizer state and
            all-reduce stay in float32.

    Returns:
        The network. Its arrays are NumPy's.
    """
    # In bfloat16 an update below 1/512 of its weight would be rounded away.
    param_dtype = "float64" if dtype == "float64" else "float32"
    types = {"dtype": jnp.dtype(dtype), "param_dtype": jnp.dtype(param_dtype)}
    with use_host(), jax.transfer_guard("allow"):
        # Not under jit: there Flax would treat a constant array that the model keeps as
        # part of its structure.
        # A model of yours may take neither type.
        accepted = {name: types[name] for name in types if accepts(model, name)}
        network = model(rngs=nnx.Rngs(seed), **accepted)
        structure, arrays = nnx.split(network)
        return make_exact(nnx.merge(structure, jax.device_get(arrays)))


def accepts(model: Callable[..., nnx.Module], name: str) -> bool:
    """Return True if a class or function has an argument of this name."""
    function: Any = model
    if isinstance(model, functools.partial):
        function = model.func
    if isinstance(function, type):
        # A class of Flax itself seems to take any argument.
        function = getattr(function, "__init__")  # noqa: B009
    parameters = inspect.signature(function).parameters
    if name in parameters:
        return True
    kinds = [parameter.kind for parameter in parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def use_host() -> contextlib.AbstractContextManager[Any]:
    """Return a context that puts new arrays on a CPU.

    So no accelerator has to hold a whole model.
    """
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # JAX_PLATFORMS names only accelerators
        return contextlib.nullcontext()


def initial_state(task: Task) -> TrainState:
    """Compute the state before the first update, from the task's model.

    Under `jax.eval_shape` it gives the shapes of any state of the task.
    """
    params, model_state = task.split_arrays(task.model)
    return TrainState(
        np.zeros((), np.int32), params, model_state, task.optimizer.init(params)
    )


def create_state(task: Task) -> TrainState:
    """Make the state before the first update, as NumPy's arrays.

    It's made on the host, so that no device has to hold all of a state that a strategy
    then splits.
    """
    with use_host(), jax.transfer_guard("allow"):
        return jax.device_get(initial_state(task))


def named_leaves(*trees: Any) -> dict[str, Any]:
    """Return the leaves of some trees by name, for example `layers.0.kernel`."""
    leaves = {}
    for tree in trees:
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            leaves[jax.tree_util.keystr(path, simple=True, separator=".")] = leaf
    return leaves


@jax.jit
def is_finite(state: TrainState) -> jax.Array:
    """Return `[]`, True if all numbers that an update computes are finite.

    A model may keep an infinite constant, but no NaN.
    """
    computed = jax.tree.leaves((state.params, state.optimizer_state))
    # One number for the host to read, and one program for all arrays.
    checks = [jnp.isfinite(leaf).all() for leaf in computed]
    checks += [~jnp.isnan(leaf).any() for leaf in jax.tree.leaves(state.model_state)]
    return jnp.stack(checks).all()
