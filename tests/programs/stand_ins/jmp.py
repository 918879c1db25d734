"""What the programs call of jmp, for tests where it is not installed: a policy and a dynamic loss scale."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Policy(NamedTuple):
    """The types of parameters, computing and output."""

    params: str
    compute: str
    output: str

    def cast_to_compute(self, tree):
        return jax.tree.map(lambda x: x.astype(self.compute), tree)

    def cast_to_output(self, tree):
        return jax.tree.map(lambda x: x.astype(self.output), tree)


def get_policy(text):
    """Of "params=float32,compute=bfloat16,output=float32"."""
    return Policy(**dict(part.split("=") for part in text.split(",")))


class DynamicLossScale:
    """Doubles after `period` updates with finite gradients, and halves after one without."""

    def __init__(self, loss_scale, counter=0, period=2000):
        self.loss_scale, self.counter, self.period = loss_scale, counter, period

    def scale(self, tree):
        return jax.tree.map(lambda x: x * self.loss_scale, tree)

    def unscale(self, tree):
        return jax.tree.map(lambda x: x / self.loss_scale, tree)

    def adjust(self, finite):
        grow = self.counter == self.period - 1
        scale = jnp.where(grow, 2 * self.loss_scale, self.loss_scale)
        scale = jnp.where(finite, scale, jnp.maximum(1.0, self.loss_scale / 2))
        counter = jnp.where(finite & ~grow, self.counter + 1, 0)
        return DynamicLossScale(scale.astype(self.loss_scale.dtype), counter, self.period)


jax.tree_util.register_pytree_node(
    DynamicLossScale,
    lambda each: ((each.loss_scale, each.counter), each.period),
    lambda period, leaves: DynamicLossScale(*leaves, period),
)


def all_finite(tree):
    """Whether every number is finite."""
    return jnp.all(jnp.array([jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]))


def select_tree(pred, new, old):
    """One tree or the other."""
    return jax.tree.map(lambda a, b: jnp.where(pred, a, b), new, old)
