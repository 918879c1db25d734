"""What the programs call of Haiku, for tests where it is not installed: transformed functions, Linear and BatchNorm."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class TransformedWithState(NamedTuple):
    """`init` (rng, *inputs) to (params, state) and `apply` (params, state, rng, *inputs) to (outputs, state)."""

    init: object
    apply: object


class Frame:
    """What the modules of one call read and write."""

    current = None

    def __init__(self, rng, params, state, initial):
        self.rng, self.params, self.state, self.initial, self.count = rng, params, state, initial, {}

    def name(self, kind):
        self.count[kind] = number = self.count.get(kind, -1) + 1
        return kind if number == 0 else f"{kind}_{number}"


def transform_with_state(function):
    """A pure pair of functions of one that makes its modules where it calls them."""

    def run(frame, inputs, options):
        Frame.current = frame
        try:
            return function(*inputs, **options)
        finally:
            Frame.current = None

    def init(rng, *inputs, **options):
        frame = Frame(rng, {}, {}, True)
        run(frame, inputs, options)
        return frame.params, frame.state

    def apply(params, state, rng, *inputs, **options):
        frame = Frame(rng, params, dict(state), False)
        return run(frame, inputs, options), frame.state

    return TransformedWithState(init, apply)


class Linear:
    """x W + b."""

    def __init__(self, output_size):
        self.size = output_size

    def __call__(self, x):
        frame = Frame.current
        name = frame.name("linear")
        if frame.initial:
            frame.rng, key = jax.random.split(frame.rng)
            w = jax.random.normal(key, (x.shape[-1], self.size)) / x.shape[-1] ** 0.5
            frame.params[name] = {"w": w, "b": jnp.zeros(self.size)}
        own = frame.params[name]
        return x @ own["w"].astype(x.dtype) + own["b"].astype(x.dtype)


class BatchNorm:
    """The moments of the examples that it sees, or the average of those that it has seen."""

    def __init__(self, create_scale, create_offset, decay_rate):
        self.decay = decay_rate

    def __call__(self, x, is_training):
        frame = Frame.current
        name = frame.name("batch_norm")
        if frame.initial:
            frame.params[name] = {"scale": jnp.ones(x.shape[-1]), "offset": jnp.zeros(x.shape[-1])}
            frame.state[f"{name}/~/mean_ema"] = {"average": jnp.zeros(x.shape[-1])}
            frame.state[f"{name}/~/var_ema"] = {"average": jnp.ones(x.shape[-1])}
        averages = [frame.state[f"{name}/~/{kind}"]["average"] for kind in ("mean_ema", "var_ema")]
        mean, var = (x.mean(0), x.var(0)) if is_training else averages
        for kind, old, new in zip(("mean_ema", "var_ema"), averages, (mean, var), strict=True):
            frame.state[f"{name}/~/{kind}"] = {"average": self.decay * old + (1 - self.decay) * new}
        own = frame.params[name]
        return (x - mean) / jnp.sqrt(var + 1e-5) * own["scale"] + own["offset"]
