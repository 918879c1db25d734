"""Checks of lesson 03's exercises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.lessons.checks import close, refuse, require


def regression():
    """Two layers, `[B, 4]` to `[B, 2]`."""
    rngs = nnx.Rngs(0)
    first = nnx.Linear(4, 5, rngs=rngs)
    second = nnx.Linear(5, 2, rngs=rngs)
    return nnx.Sequential(first, jnp.tanh, second)


def squared_error_sums(model, batch):
    """The squared errors, summed over the batch, and what the metrics are made of."""
    x, y = batch  # [4, 3, 4], [4, 3, 2]: each row holds three examples
    losses = ((model(x) - y) ** 2).sum(-1)
    sums = {"loss": losses.sum(), "count": losses.size}
    return sums["loss"], sums


def update_state(answer):
    """Four compiled updates against nnx.Optimizer, with three optimizers, and one eager update."""
    # The last one needs the model, because it also decays the weights.
    optimizers = (
        optax.sgd(0.1, momentum=0.9),
        optax.adam(0.01),
        optax.adamw(0.01, weight_decay=0.1),
    )
    for optimizer in optimizers:
        step = functools.partial(answer, squared_error_sums, optimizer)
        try:
            compare_with_nnx(jax.jit(step), optimizer)
        except ValueError as error:
            require(
                "current value of parameters" not in str(error),
                "optax.adamw needs the model, because it decays the weights: "
                "give it to optimizer.update as the third argument",
            )
            require(
                "pytree structure error" not in str(error),
                "the gradients, the optimizer's state and the model must be pytrees of "
                "one structure: take jax.grad, which returns another module, and not "
                "nnx.grad, which returns an nnx.State; and optimizer.update returns the "
                "updates first, then its new state",
            )
            raise
    refuse_changed_state(functools.partial(answer, squared_error_sums, optimizers[0]))


def refuse_changed_state(step):
    """Reject a step that changes its argument, which jit hides by tracing a copy of it."""
    model = regression()
    state = (model, optax.sgd(0.1, momentum=0.9).init(model))
    before = [np.array(leaf) for leaf in jax.tree.leaves(state)]
    step(state, (np.ones((4, 3, 4)), np.ones((4, 3, 2))))
    require(
        close(jax.tree.leaves(state), before, rtol=0, atol=0),
        "without jit your step changes the state that it's given: leave the old model "
        "as it is, and return the one that optax.apply_updates makes",
    )


def refuse_counts(new_model, optimizer, model, batch):
    """Reject a first update in which the wrong thing is divided, or by a wrong number."""
    summed, sums = jax.grad(squared_error_sums, has_aux=True)(model, batch)
    count = sums["count"]
    rows = len(batch[0])

    def updated(gradient_divisor, update_divisor=1):
        gradients = jax.tree.map(lambda g: g / gradient_divisor, summed)
        updates, _ = optimizer.update(gradients, optimizer.init(model), model)
        updates = jax.tree.map(lambda update: update / update_divisor, updates)
        return optax.apply_updates(model, updates)

    mistakes = {
        "this is the update by the gradient of the summed loss: divide the "
        "gradients by the number of examples": updated(1),
        f"this batch has {rows} rows and {count} examples, three in each row: divide "
        'by sums["count"]': updated(rows),
        "divide the gradients, and not the updates: Adam's updates hardly depend on "
        "the length of the gradients": updated(1, count),
    }
    for message, wrong_model in mistakes.items():
        require(not close(new_model, wrong_model, rtol=1e-5, atol=1e-5), message)


def compare_with_nnx(step, optimizer):
    """Make four updates, and compare each with nnx.Optimizer's."""
    rng = np.random.default_rng(0)
    model = regression()
    nnx_model = regression()
    nnx_optimizer = nnx.Optimizer(nnx_model, optimizer, wrt=nnx.Param)
    state = (model, optimizer.init(model))
    for number in (1, 2, 3, 4):
        x = rng.normal(size=(4, 3, 4)).astype(np.float32)
        y = rng.normal(size=(4, 3, 2)).astype(np.float32)
        batch = (x, y)
        expected_sums = squared_error_sums(nnx_model, batch)[1]

        def mean_loss(model, batch=batch):
            loss, sums = squared_error_sums(model, batch)
            return loss / sums["count"]

        result = step(state, batch)
        require(
            isinstance(result, tuple | list) and len(result) == 2,
            "return two things, the new state and the sums",
        )
        new_state, sums = result
        require(
            jax.tree.structure(new_state) != jax.tree.structure(expected_sums),
            "the two results are swapped: return the new state first, then the sums",
        )
        require(
            isinstance(new_state, tuple | list) and len(new_state) == 2,
            "the new state must be a pair again, (model, optimizer_state)",
        )
        require(
            jax.tree.structure(sums) == jax.tree.structure(expected_sums)
            and close(sums, expected_sums),
            "the second result must be the sums, as `loss_sums` returns them",
        )
        new_model = new_state[0]
        require(
            jax.tree.structure(new_model) == jax.tree.structure(model),
            "the state must begin with the model, a pytree like the one that came in",
        )
        require(
            not close(new_model, model, rtol=1e-5, atol=1e-7),
            "the parameters did not change: apply the updates with optax.apply_updates",
        )
        nnx_optimizer.update(nnx_model, nnx.grad(mean_loss)(nnx_model))
        is_right = close(new_model, nnx_model, rtol=1e-5, atol=1e-5)
        if number == 1 and not is_right:
            refuse_counts(new_model, optimizer, model, batch)
        first = (
            "the first update is wrong: "
            "optimizer.update gives what is added to the parameters"
        )
        later = (
            f"the first update is right and update {number} is not: "
            "return the optimizer's new state"
        )
        require(is_right, first if number == 1 else later)
        state = new_state
        model = new_model


def pad_rows(answer):
    """Batches of 1, 3, 5 and 8 examples, out of 50, padded to 8 rows. Row 0 is an example, too."""
    rng = np.random.default_rng(0)
    for examples in (3, 1, 5, 8):
        rows = rng.choice(np.arange(1, 50), examples, replace=False)
        if examples > 1:
            rows[1] = 0
        before = rows.copy()
        result = answer(rows, 8)
        require(np.array_equal(rows, before), "`rows` was changed in place")
        require(
            isinstance(result, tuple | list) and len(result) == 2,
            "return two arrays, the row numbers and the weights",
        )
        padded, weights = map(np.asarray, result)
        case = f"for {examples} examples and B = 8"
        require(
            padded.shape == (8,),
            f"{case} the row numbers have the shape {padded.shape}, not (8,)",
        )
        require(
            np.issubdtype(padded.dtype, np.integer),
            f"{case} the row numbers are {padded.dtype}: they must stay whole numbers, "
            "because `inputs[rows]` is next",
        )
        require(
            np.array_equal(padded[:examples], rows),
            f"{case} the row numbers must begin with {rows}, yours are {padded}",
        )
        require(
            padded.min() >= 0 and padded.max() < 50,
            f"{case} your row numbers are {padded}: there are 50 examples, 0 to 49",
        )
        require(
            weights.shape == (8,),
            f"{case} the weights have the shape {weights.shape}: one weight a row, (8,)",
        )
        require(
            weights.dtype != bool,
            f"{case} the weights are True and False: make numbers of them, because JAX "
            "takes `weights @ correct` of two boolean arrays for a logical or",
        )
        expected = np.ones(8)
        expected[examples:] = 0
        require(
            np.array_equal(weights, expected),
            f"{case} the weights are {expected}, 0 for padding alone, "
            f"yours are {weights}",
        )


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
