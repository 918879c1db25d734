"""Checks of lesson 02's exercises."""

from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, require


def relu_power(answer):
    """Values and derivatives, also under jit."""
    x = jnp.asarray([-2.0, -0.5, 0.0, 0.5, 3.0])
    try:
        values = np.asarray(jax.jit(answer, static_argnums=1)(x, 2))
    except jax.errors.TracerBoolConversionError:
        require(
            False,
            "`if` cannot look at values under jit: "
            "compute both and choose with jnp.where",
        )
    require(
        values.shape == x.shape,
        f"the result must have the shape of x, {x.shape}, yours has {values.shape}",
    )
    require(
        np.allclose(values[:3], 0),
        "if x is negative the result is 0, and if x is 0, too, "
        f"yours is {values[:3]}: set it to 0 first",
    )
    require(
        np.allclose(values[3:], [0.25, 9]),
        f"for x = 0.5 and 3 and n = 2 the result is 0.25 and 9, not {values[3:]}",
    )
    tiny = jnp.asarray([-1e-8, 1e-8])
    roots = np.asarray(answer(tiny, 0.5))
    require(
        np.allclose(roots, [0, 1e-4], rtol=1e-3, atol=1e-9),
        f"for x = {tiny} and n = 0.5 the result is 0 and 0.0001, not {roots}: only 0 "
        "itself divides what is positive from what isn't",
    )
    derivatives = np.asarray(jax.grad(lambda x: answer(x, 1.5).sum())(x))
    require(
        not np.isnan(derivatives).any(),
        "the derivative is nan if x is negative: the branch that is not chosen must "
        "be safe too, so choose x or 0 first, and take the power of that",
    )
    expected = np.array([0, 0, 0, 1.5 * 0.5**0.5, 1.5 * 3**0.5])
    require(
        np.allclose(derivatives, expected, rtol=1e-4),
        f"for n = 1.5 the derivatives are {expected.round(4)}, "
        f"yours are {derivatives.round(4)}",
    )
    derivatives = np.asarray(jax.grad(lambda x: answer(x, 0.5).sum())(x))
    require(
        np.isfinite(derivatives).all(),
        f"for n = 0.5 and x = {x} your derivatives are {derivatives.round(4)}: a root "
        "has an infinite slope at 0, and 0 times infinity is nan, so choose x or a "
        "safe number with jnp.where, and take the power of that",
    )
    expected = np.array([0, 0, 0, 0.5 / 0.5**0.5, 0.5 / 3**0.5])
    require(
        np.allclose(derivatives, expected, rtol=1e-4),
        f"for n = 0.5 the derivatives are {expected.round(4)}, "
        f"yours are {derivatives.round(4)}",
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
        no_clipping = "no gradient was clipped: compare each length with the limit"
        late = (
            "the mean was clipped: clip the gradient of each example first, "
            "then take the mean"
        )
        short = "short gradients were stretched to the limit: only longer ones change"
        total = "this is the sum over the examples: take the mean"
        mistakes = {
            no_clipping: plain_mean,
            late: clipped_mean,
            short: stretched,
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
    """All 25 shifts occur, each a pure function of the key, and no key is used twice."""
    image = jnp.zeros((9, 9)).at[4, 4].set(1)
    keys = jax.random.split(jax.random.key(0), 600)
    move = jax.vmap(answer, in_axes=(0, None))
    moved = np.asarray(move(keys, image))
    require(
        moved.shape == (600, 9, 9),
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
    rows, columns = np.divmod(moved.reshape(600, 81).argmax(1), 9)
    for direction, numbers in (("down", rows - 4), ("right", columns - 4)):
        require(
            len(np.unique(numbers)) > 1,
            f"the shift {direction} is {numbers[0]} for every key: "
            "its random number must come from `key`",
        )
        require(abs(numbers).max() <= 2, f"a shift {direction} is longer than 2 pixels")
    shifts = len(set(zip(rows.tolist(), columns.tolist(), strict=True)))
    count = f"600 keys gave {shifts} different shifts"
    require(shifts > 5, f"{count} instead of 25: both draws use one key; split it")
    require(shifts == 25, f"{count}, and 25 are possible: randint(-2, 3)")
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
