"""Checks of lesson 03's exercises."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.lessons.checks import close, refuse, require


def decay_weights(answer):
    """Weights shrink, biases stay, the nesting too."""
    rng = np.random.default_rng(0)
    layer = {"kernel": rng.normal(size=(3, 2)), "bias": rng.normal(size=2)}
    params = {"a": layer, "b": [rng.normal(size=(2, 2, 2))]}
    before = jax.tree.map(np.copy, params)
    result = answer(params, 0.25)  # not 0.5, which is 1 - 0.5, too
    require(
        jax.tree.structure(result) == jax.tree.structure(params),
        "the result must be nested like `params`",
    )
    require(close(params, before), "`params` was changed in place: return new arrays")
    bias = result["a"]["bias"]
    require(
        not np.allclose(bias, 0.25 * before["a"]["bias"]),
        "the bias was changed too: it has one axis",
    )
    require(np.allclose(bias, before["a"]["bias"]), "the bias must stay as it is")
    require(
        np.allclose(result["a"]["kernel"], 0.25 * before["a"]["kernel"]),
        "an array with two axes must be multiplied by `factor`",
    )
    require(
        np.allclose(result["b"][0], 0.25 * before["b"][0]),
        "every array with more than one axis is multiplied, also one with three, "
        "whatever its name",
    )


def regression():
    """Two layers, `[B, 4]` to `[B, 2]`."""
    rngs = nnx.Rngs(0)
    first = nnx.Linear(4, 5, rngs=rngs)
    second = nnx.Linear(5, 2, rngs=rngs)
    return nnx.Sequential(first, jnp.tanh, second)


def make_step(answer):
    """Four updates, compiled, against nnx.Optimizer, with three optimizers."""
    # The last one needs the model, because it also decays the weights.
    optimizers = (
        optax.sgd(0.1, momentum=0.9),
        optax.adam(0.01),
        optax.adamw(0.01, weight_decay=0.1),
    )
    for optimizer in optimizers:
        step = answer(optimizer)
        require(
            callable(step),
            "return a function: define `step` inside and end with `return step`",
        )
        try:
            compare_with_nnx(jax.jit(step), optimizer)
        except ValueError as error:
            require(
                "current value of parameters" not in str(error),
                "optax.adamw needs the model, because it decays the weights: "
                "give it to optimizer.update as the third argument",
            )
            raise


def compare_with_nnx(step, optimizer):
    """Make four updates, and compare each with nnx.Optimizer's."""
    rng = np.random.default_rng(0)
    model = regression()
    nnx_model = regression()
    nnx_optimizer = nnx.Optimizer(nnx_model, optimizer, wrt=nnx.Param)
    optimizer_state = optimizer.init(model)
    for number in (1, 2, 3, 4):
        x = rng.normal(size=(6, 4)).astype(np.float32)
        y = rng.normal(size=(6, 2)).astype(np.float32)

        def mean_squared_error(model, x=x, y=y):
            return ((model(x) - y) ** 2).mean()

        result = step(model, optimizer_state, x, y)
        require(
            isinstance(result, tuple | list) and len(result) == 3,
            "the step must return three things, (model, optimizer_state, loss)",
        )
        new_model, new_optimizer_state, loss = result
        require(
            jax.tree.structure(new_model) == jax.tree.structure(model),
            "the first result must be the model, a pytree like the one that came in",
        )
        is_number = isinstance(loss, jax.Array) and loss.shape == ()
        require(is_number, "the third result must be the loss, one number")
        expected_loss, gradients = nnx.value_and_grad(mean_squared_error)(nnx_model)
        nnx_optimizer.update(nnx_model, gradients)
        require(
            np.isclose(loss, expected_loss, rtol=1e-4),
            f"the loss before update {number} should be {expected_loss:.4f}, the mean "
            f"of all squared errors, yours is {loss:.4f}",
        )
        require(
            not close(new_model, model, rtol=1e-5, atol=1e-7),
            "the parameters did not change: apply the updates with optax.apply_updates",
        )
        first = (
            "the first update is wrong: "
            "optimizer.update gives what is added to the parameters"
        )
        later = (
            f"the first update is right and update {number} is not: "
            "return the optimizer's new state"
        )
        require(
            close(new_model, nnx_model, rtol=1e-5, atol=1e-5),
            first if number == 1 else later,
        )
        model = new_model
        optimizer_state = new_optimizer_state


def fixed_loss(answer):
    """Pairs are compared, not every prediction with every target."""
    rng = np.random.default_rng(0)
    predictions = rng.normal(size=(7, 1)).astype(np.float32)
    targets = rng.normal(size=7).astype(np.float32)
    result = np.asarray(answer(jnp.asarray(predictions), jnp.asarray(targets)))
    require(
        result.shape == (),
        f"the loss is one number, yours has the shape {result.shape}",
    )
    errors = predictions[:, 0] - targets
    every = (
        "this is still the broken loss: [B, 1] minus [B] is [B, B], "
        "every prediction against every target"
    )
    mistakes = {
        every: ((predictions - targets) ** 2).mean(),
        "this is the sum over the examples: take the mean": (errors**2).sum(),
        "square each error before you take the mean": errors.mean() ** 2,
        "this is the mean of the absolute errors: square them": abs(errors).mean(),
    }
    refuse(result, mistakes, atol=0)
    require(
        np.isclose(result, (errors**2).mean(), rtol=1e-4),
        "the loss is the mean over the examples of (prediction - target) squared",
    )
