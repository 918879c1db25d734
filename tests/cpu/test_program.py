"""The pass over a program leaves alone what it does not know: values and gradients are those of the function itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from marks import quick

from pmapdp.cpu.convolution import LAYOUT, faster
from pmapdp.models.layers import max_pool

KERNEL = (3, 3, 2, 2)


def layer(x, k):
    """A convolution that keeps the shape, a ReLU."""
    return nnx.relu(lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=LAYOUT))


@jax.custom_jvp
def with_jvp(x, k):
    return layer(x, k)


with_jvp.defjvp(lambda primals, tangents: (layer(*primals), 2 * jax.jvp(layer, primals, tangents)[1]))


@jax.custom_vjp
def with_vjp(x, k):
    return layer(x, k)


with_vjp.defvjp(
    lambda x, k: (layer(x, k), (x, k)), lambda saved, dy: tuple(3 * g for g in jax.vjp(layer, *saved)[1](dy))
)


def mapped(x, k):
    mesh, rows = Mesh(np.array(jax.devices()[:4]), ("data",)), PartitionSpec("data")
    return jax.shard_map(layer, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=rows, check_vma=False)(x, k)


FUNCTIONS = {
    "plain": layer,
    "jit": jax.jit(layer),
    "jit in jit": jax.jit(lambda x, k: jax.jit(layer)(jax.jit(layer)(x, k), k)),
    "custom_jvp": with_jvp,
    "custom_vjp": with_vjp,
    "remat": jax.checkpoint(layer),
    "scan": lambda x, k: lax.scan(lambda x, _: (layer(x, k), x.sum()), x, None, length=2)[0],
    "while": lambda x, k: lax.fori_loop(0, 2, lambda _, x: layer(x, k), x),
    "cond": lambda x, k: lax.cond(x.sum() > 0, layer, lambda x, k: x, x, k),
    "vmap": lambda x, k: jax.vmap(layer, (None, 0))(x, jnp.stack([k, 2 * k])).sum(0),
    "shard_map": mapped,
    "grad inside": lambda x, k: jax.grad(lambda x: jnp.square(layer(x, k)).sum())(x),
    "pooled": lambda x, k: max_pool(layer(x, k)),
    "used twice": lambda x, k: max_pool(y := layer(x, k)).mean() + y,
    "average": lambda x, k: nnx.avg_pool(layer(x, k), (2, 2), (2, 2)),
    "constants": lambda x, k: layer(x, k) * jnp.arange(2.0),
    "no use": lambda x, k: (layer(x, k), x)[1] + k.sum(),
}


@quick(4, "name", FUNCTIONS)
def test_values_and_gradients(float64, name):
    function, random = FUNCTIONS[name], np.random.default_rng(0)
    x, k = random.normal(size=(8, 12, 12, 2)), random.normal(size=KERNEL)
    (wanted, their_gradients), (found, our_gradients) = jax.vjp(function, x, k), jax.vjp(faster(function), x, k)
    weights = random.normal(size=wanted.shape)
    for ours, theirs in zip((found, *our_gradients(weights)), (wanted, *their_gradients(weights)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())


class Network(nnx.Module):
    """As a user writes one: Flax' own layers, `nnx.remat`, `@jax.jit`."""

    def __init__(self, rngs):
        options = {"rngs": rngs, "param_dtype": jnp.float64}
        self.first, self.second = nnx.Conv(1, 4, (3, 3), **options), nnx.Conv(4, 4, (3, 3), **options)
        self.norm, self.out = nnx.BatchNorm(4, **options), nnx.Linear(4, 3, **options)

    def __call__(self, x):
        @jax.jit
        def squared(x):
            return jnp.square(x)

        x = nnx.relu(max_pool(self.first(x)))
        x = self.norm(nnx.remat(lambda conv, x: conv(x))(self.second, squared(x)))
        return self.out(max_pool(nnx.relu(x)).mean((1, 2)))


@pytest.mark.slow
def test_a_plain_flax_model_with_batch_norm(float64):
    structure, params, rest = nnx.split(Network(nnx.Rngs(0)), nnx.Param, ...)
    images = np.random.default_rng(0).normal(size=(8, 16, 16, 1))

    def loss(params, rest):
        model = nnx.merge(structure, params, rest, copy=True)
        return jnp.square(model(images)).sum(), nnx.state(model, nnx.BatchStat)

    wanted, found = (jax.value_and_grad(f, has_aux=True)(params, rest) for f in (loss, faster(loss)))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * max(1, np.abs(theirs).max()))
