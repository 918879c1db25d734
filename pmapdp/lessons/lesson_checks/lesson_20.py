"""Checks of lesson 20's exercises."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, refuse, require


def fixed_mean(answer):
    """Accept a mean of many gradients, also of large ones, if nothing was rounded to two bytes."""
    random = np.random.default_rng(0)
    for K, size in ((700, 3000.0), (700, 1.0), (3, 1.0)):
        gradients = size * random.uniform(0.5, 1.5, (K, 4))
        gradients = jnp.asarray(gradients, jnp.bfloat16)
        found = answer(gradients)
        require(
            np.shape(found) == (4,),
            f"[D] is (4,), yours has the shape {np.shape(found)}",
        )
        wanted = np.asarray(gradients, np.float64).mean(0)
        values = np.asarray(found, np.float64)
        require(
            np.isfinite(values).all(),
            f"the mean of {K} numbers near {size:.0f} is not finite: float16 ends at "
            "65,504",
        )
        refuse(
            values,
            {"this is the sum: divide by the number of micro-batches": K * wanted},
        )
        require(
            np.allclose(values, wanted, rtol=0.01),
            f"the mean of {K} numbers near {size:.0f} is {wanted.round(3)}, yours is "
            f"{values.round(3)}: in a sum of two-byte numbers, the next one is rounded "
            "away as soon as the total is large",
        )
        require(
            found.dtype == jnp.float32,
            f"return float32, because yours is {found.dtype}",
        )
        require(
            np.allclose(values, wanted, rtol=1e-4),
            f"the mean of {K} numbers near {size:.0f} is {wanted.round(5)}, yours is "
            f"{values.round(5)}: close, but a sum or the mean was rounded to two bytes "
            "on the way. Make the gradients float32 before you add them",
        )


def scaled_gradient(answer):
    """Accept a gradient that float16 alone would make 0."""
    first = np.array([2e-4, 1e-4, -3e-4], np.float16)
    second = np.array([1e-4, 2e-4, 5e-5], np.float16)
    w = jnp.ones(3, jnp.float16)
    scales = []

    def loss(w):
        scales.append(w.dtype)
        return jnp.sum(jnp.asarray(second) * (jnp.asarray(first) * w))

    wanted = first.astype(np.float64) * second
    for scale in (2.0**12, 2.0**14):
        found = answer(loss, w, scale)
        require(
            np.shape(found) == (3,),
            f"the gradient has the shape (3,), yours has {np.shape(found)}",
        )
        require(
            all(dtype == jnp.float16 for dtype in scales),
            "loss was called with another dtype than float16: leave w as it is, and "
            "scale the loss",
        )
        values = np.asarray(found, np.float64)
        require(
            not np.allclose(values, scale * wanted, rtol=0.02),
            f"this is {scale:.0f} times too long: divide by scale in the end",
        )
        require(
            not np.any(np.abs(values) < 0.01 * np.abs(wanted)),
            f"the gradient is {wanted}, yours is {values}: float16 has made 0 of small "
            "numbers. Multiply the loss before jax.grad, make the result float32, and "
            "divide then",
        )
        require(
            np.allclose(values, wanted, rtol=0.02),
            f"the gradient is {wanted}, yours is {values}",
        )
        require(
            found.dtype == jnp.float32,
            f"return float32, because yours is {found.dtype}",
        )


def in_groups(answer):
    """Accept the output of all layers, if the backward pass keeps one array for each group."""
    L, D, rows = 12, 8, 32

    def layer(x, w):
        return jnp.tanh(jax.nn.silu(x @ w))

    random = np.random.default_rng(0)
    layers = random.normal(0, 0.5, (L, D, D)).astype(np.float32)
    x = random.normal(size=(rows, D)).astype(np.float32)
    wanted = x
    for w in layers:
        wanted = layer(wanted, w)
    for group_size in (3, 2):
        output, backward = jax.vjp(
            lambda layers, x, size=group_size: answer(layer, layers, x, size),
            jnp.asarray(layers),
            jnp.asarray(x),
        )
        require(
            output.shape == (rows, D),
            f"the output has the shape {(rows, D)}, yours has {output.shape}",
        )
        require(
            close(output, wanted),
            f"with {L} layers in groups of {group_size}, all layers in their order "
            "give another output",
        )
        leaves = jax.tree.leaves(backward)
        sizes = [leaf.size for leaf in leaves if leaf.shape[-2:] == (rows, D)]
        kept = sum(sizes) // (rows * D)
        groups = L // group_size
        require(
            kept != L,
            f"right, but the backward pass keeps {L} arrays, one for each layer: "
            f"checkpoint {group_size} layers together",
        )
        require(
            kept != 1,
            "right, but all layers are in one checkpoint. The backward pass keeps one "
            "array, but then it repeats the whole forward pass and keeps everything",
        )
        require(
            kept != group_size,
            f"right, but the backward pass keeps {kept} arrays: you made {group_size} "
            f"groups, in place of groups of {group_size} layers",
        )
        require(
            kept == groups,
            f"right, but the backward pass keeps {kept} arrays of the shape of x. "
            f"{L} layers in groups of {group_size} need {groups}",
        )
