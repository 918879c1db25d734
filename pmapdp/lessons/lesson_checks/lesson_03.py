"""Checks of lesson 03's exercises."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.lessons.checks import close, refuse, require


def decay_weights(answer):
    """Weights shrink, biases stay, the nesting too."""
    random = np.random.default_rng()
    params = {
        "a": {"kernel": random.normal(size=(3, 2)), "bias": random.normal(size=2)},
        "b": [random.normal(size=(2, 2, 2))],
    }
    found = answer(params, 0.5)
    require(
        jax.tree.structure(found) == jax.tree.structure(params),
        "the result must be nested like `params`",
    )
    require(
        not np.allclose(found["a"]["bias"], 0.5 * params["a"]["bias"]),
        "the bias was changed too: it has one axis",
    )
    require(
        np.allclose(found["a"]["bias"], params["a"]["bias"]),
        "the bias must stay as it is",
    )
    pairs = (
        (found["a"]["kernel"], params["a"]["kernel"]),
        (found["b"][0], params["b"][0]),
    )
    halved = all(np.allclose(each, 0.5 * before) for each, before in pairs)
    require(
        halved, "every array with more than one axis is multiplied, also one with three"
    )


def regression(seed):
    """Two layers, `[B, 4]` to `[B, 2]`."""
    rngs = nnx.Rngs(seed)
    return nnx.Sequential(
        nnx.Linear(4, 5, rngs=rngs), jnp.tanh, nnx.Linear(5, 2, rngs=rngs)
    )


def make_step(answer):
    """Four updates, compiled, against nnx.Optimizer, with two optimizers."""
    random = np.random.default_rng()
    seed = int(random.integers(1000))
    for optimizer in (optax.sgd(0.1, momentum=0.9), optax.adam(0.01)):
        model, of_nnx = regression(seed), regression(seed)
        reference = nnx.Optimizer(of_nnx, optimizer, wrt=nnx.Param)
        step = answer(optimizer)
        require(
            callable(step),
            "return a function: define `step` inside and end with `return step`",
        )
        step, optimizer_state = jax.jit(step), optimizer.init(model)
        for number in range(4):
            x, y = (
                random.normal(size=(6, features)).astype(np.float32)
                for features in (4, 2)
            )
            result = step(model, optimizer_state, x, y)
            three = isinstance(result, tuple | list) and len(result) == 3
            require(
                three,
                "the step must return three things, (model, optimizer_state, loss)",
            )
            new_model, new_optimizer_state, loss = result
            like_model = jax.tree.structure(new_model) == jax.tree.structure(model)
            require(
                like_model,
                "the first result must be the model, a pytree like the one that came in",
            )
            require(
                np.shape(loss) == (), "the third result must be the loss, one number"
            )
            right = ((of_nnx(x) - y) ** 2).mean()
            gradients = nnx.grad(lambda model, x=x, y=y: ((model(x) - y) ** 2).mean())(
                of_nnx
            )
            reference.update(of_nnx, gradients)
            wanted = f"the loss before update {number + 1} should be {right:.4f}, the mean of all squared errors"
            require(
                np.isclose(loss, right, rtol=1e-4), f"{wanted}, yours is {loss:.4f}"
            )
            unchanged = "the parameters did not change: apply the updates with optax.apply_updates"
            require(not close(new_model, model, rtol=1e-5, atol=1e-7), unchanged)
            message = "the first update is wrong: optimizer.update gives what is added to the parameters"
            if number:
                message = f"the first update is right and update {number + 1} is not: return the optimizer's new state"
            require(close(new_model, of_nnx, rtol=1e-5, atol=1e-5), message)
            model, optimizer_state = new_model, new_optimizer_state


def fixed_loss(answer):
    """Pairs are compared, not every prediction with every target."""
    random = np.random.default_rng()
    predictions, targets = (
        random.normal(size=(7, 1)).astype(np.float32),
        random.normal(size=7).astype(np.float32),
    )
    found = np.asarray(answer(jnp.asarray(predictions), jnp.asarray(targets)))
    require(
        found.shape == (), f"the loss is one number, yours has the shape {found.shape}"
    )
    every = "this is still the broken loss: [B, 1] minus [B] is [B, B], every prediction against every target"
    refuse(found, {every: ((predictions - targets) ** 2).mean()}, atol=0)
    right = np.isclose(found, ((predictions[:, 0] - targets) ** 2).mean(), rtol=1e-4)
    require(
        right, "the loss is the mean over the examples of (prediction - target) squared"
    )
