"""Checks of lesson 02's exercises."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, refuse, require


def squared_error_sums(model, batch):
    """The squared errors of a straight line, summed over the batch, and their count."""
    x, y = batch  # [4, 3, D], [4, 3]: each row holds three examples
    errors = x @ model["layer"][0] + model["layer"][1] - y
    loss = (errors**2).sum()
    return loss, {"loss": loss, "count": y.size}


def update_model(answer):
    """Against a gradient by hand in NumPy: a model in a list in a dictionary, under jit."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=3).astype(np.float32)
    b = np.float32(0.5)
    model = {"layer": [jnp.asarray(w), jnp.asarray(b)]}
    x = rng.normal(size=(4, 3, 3)).astype(np.float32)
    y = rng.normal(size=(4, 3)).astype(np.float32)
    count = y.size
    rate = 0.3
    step = jax.jit(functools.partial(answer, squared_error_sums))
    try:
        result = step(model, (x, y), rate)
    except TypeError as error:
        require(
            "'list'" not in str(error),
            "the model of this check is nested, two arrays in a list in a dictionary: "
            "jax.tree.map finds the arrays of any pytree",
        )
        raise
    require(
        isinstance(result, tuple | list) and len(result) == 2,
        "return two things, the new model and the sums",
    )
    new_model, sums = result
    errors = x @ w + b - y
    expected_sums = {"loss": (errors**2).sum(), "count": count}
    require(
        jax.tree.structure(new_model) != jax.tree.structure(expected_sums),
        "the two results are swapped: return the new model first, then the sums",
    )
    require(
        jax.tree.structure(sums) == jax.tree.structure(expected_sums)
        and close(sums, expected_sums),
        "the second result must be the sums, as `loss_sums` returns them",
    )
    nesting = jax.tree.structure(model)
    require(
        jax.tree.structure(new_model) == nesting,
        f"the new model must be nested like the old one, {nesting}",
    )
    # The gradient of the summed loss.
    slopes = {"layer": [2 * np.tensordot(errors, x, 2), 2 * errors.sum()]}

    def stepped(factor):
        return jax.tree.map(lambda w, g: w - factor * g, model, slopes)

    mistakes = {
        "this is a step along the gradient of the summed loss: divide it by "
        'sums["count"]': stepped(rate),
        "this step goes up: subtract the gradient": stepped(-rate / count),
        "the learning rate is missing": stepped(1 / count),
        'the batch is a pair, so len(batch) is 2: divide by sums["count"]': stepped(
            rate / 2
        ),
        f"this batch has {len(y)} rows and {count} examples, three in each row: "
        'divide by sums["count"]': stepped(rate / len(y)),
        "this is the gradient: return the new model": jax.tree.map(
            lambda g: g / count, slopes
        ),
        "the model did not change": model,
    }
    refuse(new_model, mistakes)
    expected = stepped(rate / count)
    require(
        close(new_model, expected),
        f"b is {b}, the gradient of its mean loss is {2 * errors.mean():.4f} and the "
        f"rate {rate}, so the new b is {expected['layer'][1]:.4f}, "
        f"yours is {new_model['layer'][1]:.4f}",
    )


def tree_length(tree):
    """The root of the sum of all squares, over all arrays of a pytree."""
    squares = [(np.asarray(leaf) ** 2).sum() for leaf in jax.tree.leaves(tree)]
    return np.sqrt(sum(squares))


def weighted_mean(gradients, factors):
    """The mean of pytrees, each multiplied by its factor."""

    def mean_of_leaves(*leaves):
        return np.tensordot(factors, np.stack(leaves), 1) / len(leaves)

    return jax.tree.map(mean_of_leaves, *gradients)


def clipped_mean_gradient(answer):
    """Against a loop over the examples, with long and with short gradients."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(4, 3)).astype(np.float32)
    b = rng.normal(size=3).astype(np.float32)
    parameters = {"w": w, "b": b}
    x = rng.normal(size=(6, 4)).astype(np.float32)
    labels = rng.integers(0, 3, 6)

    def loss_one(parameters, image, label):
        logits = image @ parameters["w"] + parameters["b"]
        return -jax.nn.log_softmax(logits)[label]

    gradients = []
    for image, label in zip(x, labels, strict=True):
        gradients.append(jax.grad(loss_one)(parameters, image, label))
    lengths = np.array([tree_length(gradient) for gradient in gradients])
    plain_mean = weighted_mean(gradients, np.ones(6))
    mean_is_too_long = float(0.7 * tree_length(plain_mean))
    half_are_too_long = float(np.sort(lengths)[2:4].mean())
    none_is_too_long = 100.0
    for limit in (mean_is_too_long, half_are_too_long, none_is_too_long):
        result = answer(loss_one, parameters, x, labels, limit)
        nesting = jax.tree.structure(parameters)
        require(
            jax.tree.structure(result) == nesting,
            f"the result must be nested like the parameters, {nesting}",
        )
        shapes = jax.tree.map(np.shape, result)
        expected_shapes = jax.tree.map(np.shape, parameters)
        require(
            shapes == expected_shapes,
            f"the shapes must be {expected_shapes}, yours are {shapes}: "
            "take the mean over the examples",
        )
        expected = weighted_mean(gradients, 1 / np.maximum(lengths / limit, 1))
        mean_factor = 1 / max(tree_length(plain_mean) / limit, 1)
        clipped_mean = weighted_mean(gradients, np.full(6, mean_factor))
        stretched = weighted_mean(gradients, limit / lengths)
        batch_factor = 1 / max(tree_length(gradients) / limit, 1)
        no_clipping = "no gradient was clipped: compare each length with the limit"
        late = (
            "the mean was clipped: clip the gradient of each example first, "
            "then take the mean"
        )
        short = "short gradients were stretched to the limit: only longer ones change"
        together = (
            "this is one length for all examples: each example's gradient has its own, "
            "so take it inside the function that you vmap"
        )
        total = "this is the sum over the examples: take the mean"
        mistakes = {
            no_clipping: plain_mean,
            late: clipped_mean,
            short: stretched,
            together: weighted_mean(gradients, np.full(6, batch_factor)),
            total: weighted_mean(gradients, 6 / np.maximum(lengths / limit, 1)),
        }
        for message, wrong in mistakes.items():
            # With the largest limit some mistakes change nothing.
            tells = not close(wrong, expected, atol=1e-5)
            require(not (tells and close(result, wrong, atol=1e-5)), message)
        require(
            close(result, expected, atol=1e-5),
            "a gradient's length is the root of the sum of all squares, over all "
            f"arrays of the pytree together; the first example's is {lengths[0]:.4f}, "
            f"and the limit is {limit:.4f}",
        )


def fixed_shift(answer):
    """All 25 shifts are equally likely, and no key is used twice."""
    image = jnp.zeros((9, 9)).at[4, 4].set(1)
    keys = jax.random.split(jax.random.key(0), 2500)
    move = jax.vmap(answer, in_axes=(0, None))
    moved = np.asarray(move(keys, image))
    require(
        moved.shape == (2500, 9, 9),
        f"an image [9, 9] gives an image [9, 9], yours has {moved.shape[1:]}",
    )
    require(
        bool((moved.sum((1, 2)) == 1).all()),
        "rolling must keep all pixels: use jnp.roll",
    )
    require(
        np.array_equal(moved, move(keys, image)),
        "the same key must give the same shift",
    )
    rows, columns = np.divmod(moved.reshape(2500, 81).argmax(1), 9)
    for direction, numbers in (("down", rows - 4), ("right", columns - 4)):
        require(
            len(np.unique(numbers)) > 1,
            f"the shift {direction} is {numbers[0]} for every key: "
            "its random number must come from `key`",
        )
        require(abs(numbers).max() <= 2, f"a shift {direction} is longer than 2 pixels")
    # Each of 25 equally likely shifts occurs 100 times, with a standard deviation of 10.
    times = np.unique(5 * rows + columns, return_counts=True)[1]
    shifts = len(times)
    count = f"2500 keys gave {shifts} different shifts"
    require(shifts > 5, f"{count} instead of 25: both draws use one key; split it")
    require(shifts == 25, f"{count}, and 25 are possible: randint(-2, 3)")
    require(
        times.min() > 50 and times.max() < 150,
        "the 25 shifts must be equally likely, and with 2500 keys one came "
        f"{times.min()} times and another {times.max()} times: randint(-2, 3)",
    )
    key = jax.random.key(0)
    fold_in = jax.random.fold_in
    is_folded = False

    def consuming_fold_in(old_key, number):
        """Make the new key, and use the old one up, which JAX doesn't."""
        nonlocal is_folded
        if old_key is key and not is_folded:
            is_folded = True
            jax.random.bits(key)
        return fold_in(old_key, number)

    patch = mock.patch.object(jax.random, "fold_in", consuming_fold_in)
    try:
        with jax.debug_key_reuse(True), patch:
            answer(key, image)
    except jax.errors.KeyReuseError:
        require(
            False,
            "a key is used twice: once it was split or drawn from, "
            "use only the new keys",
        )
