"""Checks of lesson 11's exercises: under a mesh of four devices with an Explicit axis."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import P

from pmapdp.collectives import collectives
from pmapdp.lessons.checks import close, refuse, require

N = 4


def explicit_mesh():
    """Set four devices along the Explicit axis "data" as the mesh of a `with`."""
    return jax.set_mesh(jax.make_mesh((N,), ("data",), devices=jax.devices()[:N]))


def sum_gradients(answer):
    """Accept the sum of three micro-batches' gradients, if it needs one all-reduce."""
    random = np.random.default_rng(0)
    # An example has many more activations than features, so they show in the plan.
    K, B, D, C = 3, 256, 4, 32
    numbers = random.normal(size=(K, B, D)).astype(np.float32)
    weights = random.normal(size=(D, C)).astype(np.float32)
    row_counts = []

    def loss(w, x):
        row_counts.append(len(x))
        return jnp.square(x @ w).sum()

    gradients = [2 * x.T @ (x @ weights) for x in numbers]
    wanted = np.sum(gradients, 0)
    with explicit_mesh():
        w = jax.device_put(weights, P())
        xs = jax.device_put(numbers, P(None, "data"))
        jitted = jax.jit(lambda w, xs: answer(loss, w, xs))
        found = jitted(w, xs)
        require(
            isinstance(found, jax.Array) and found.shape == weights.shape,
            f"return a jax.Array [D, C], yours has the shape {np.shape(found)}",
        )
        spec = jax.typeof(found).sharding.spec
        require(
            not spec.unreduced,
            f"the result has the type {jax.typeof(found)}: the all-reduce is missing, "
            "so reshard it",
        )
        require(
            found.sharding.is_fully_replicated and not spec.reduced,
            f"the result has the type {jax.typeof(found)}: it must be replicated",
        )
        mistakes = {
            "this is the mean of the micro-batches' gradients: add them": wanted / K,
            "this is the gradient of the last micro-batch alone": gradients[-1],
            "this is the gradient of the first micro-batch alone": gradients[0],
            "the first micro-batch is in it twice": wanted + gradients[0],
        }
        refuse(found, mistakes)
        require(close(found, wanted), "the sum of the gradients has other values")
        most_rows = max(row_counts)
        require(
            most_rows <= B,
            f"right, but loss was called with {most_rows} rows at once, and a "
            f"micro-batch has {B}: call it for one xs[k] at a time",
        )
        # The type of x @ w for all micro-batches: of none, one after the other.
        products = f"[{K},{B}@data,{C}]"
        require(
            products not in str(jax.make_jaxpr(jitted)(w, xs)),
            "right, but the activations of all micro-batches are in memory at once: "
            "take the gradient of one micro-batch after the other",
        )
        compiled = jitted.lower(w, xs).compile()
        planned = compiled.memory_analysis().temp_size_in_bytes
        of_all = K * B // N * C * 4  # bytes of a device's activations
        require(
            planned < of_all,
            f"right, but the plan has {planned:,} bytes of temporary arrays, and the "
            f"activations of all {K} micro-batches take {of_all:,}. Nothing ends one "
            "micro-batch before the next without a scan: call jax.grad in each of its "
            "rounds, and add up gradients",
        )
        communication = collectives(compiled.as_text())
        runs = sum(collective.runs for collective in communication)
        require(
            runs == 1,
            f"right, but collectives run {runs} times. The gradient has the type of w: "
            "make w reduced, and sum unreduced gradients",
        )
        (collective,) = communication
        require(
            collective.bytes == weights.nbytes,
            f"right, but by an {collective.kind} of {collective.bytes} bytes, where "
            f"{weights.nbytes} are enough: sum first",
        )


def fixed_logits(answer):
    """Accept relu(x @ W1) @ W2, if each device keeps its part of x, W1 and W2."""
    random = np.random.default_rng(0)
    shapes = {"x": (8, 16), "W1": (16, 32), "W2": (32, 4)}
    x, W1, W2 = (
        random.normal(size=shape).astype(np.float32) for shape in shapes.values()
    )
    hidden = x @ W1
    wanted = np.maximum(hidden, 0) @ W2
    devices = jax.devices()[:N]
    with jax.set_mesh(jax.make_mesh((2, 2), ("data", "model"), devices=devices)):
        specs = P("data"), P(None, "model"), P("model")
        arrays = jax.device_put((x, W1, W2), specs)
        logits = answer(*arrays)
        require(
            isinstance(logits, jax.Array) and logits.shape == wanted.shape,
            f"return a jax.Array [B, C], yours has the shape {np.shape(logits)}",
        )
        found = jax.typeof(logits)
        require(
            not found.sharding.spec.unreduced,
            f"the result has the type {found}: the all-reduce is missing",
        )
        require(
            found.sharding.spec == P("data", None),
            f"the result has the type {found}: split its rows over data, "
            "and nothing over model",
        )
        refuse(logits, {"the ReLU is missing": hidden @ W2})
        require(close(logits, wanted), "relu(x @ W1) @ W2 has other values")
        program = jax.jit(answer).lower(*arrays).compile().as_text()
        communication = collectives(program)
        kinds = ", ".join(collective.kind for collective in communication)
        received = sum(collective.bytes for collective in communication)
        require(
            received <= wanted.nbytes / 2,
            f"right, but by {kinds} of {received} bytes: a device gets more than the "
            "sums of its rows' logits",
        )


def normalized_step(answer):
    """Accept a step with the global batch's moments, on split rows, and on no others."""
    random = np.random.default_rng(0)
    offsets = np.arange(16)[:, None]  # so that the devices' means differ
    x = (random.normal(size=(16, 4)) + offsets).astype(np.float32)
    y = random.normal(size=16).astype(np.float32)
    w = random.normal(size=4).astype(np.float32)
    with explicit_mesh():
        step = jax.jit(answer)
        arguments = jnp.asarray(w), *jax.device_put((x, y), P("data"))
        try:
            new_w = step(*arguments)
        except AssertionError:
            spec = jax.typeof(arguments[1]).sharding.spec
            require(
                False,
                f"your assert refuses a split batch: the spec of x is {spec}, "
                "so compare its first entry alone, spec[0]",
            )
        require(new_w.shape == (4,), f"w has the shape (4,), yours has {new_w.shape}")
        z = (x - x.mean(0)) / x.std(0)
        update = -0.1 * 2 * z.T @ (z @ w - y) / 16
        wanted = w + update
        of_rows = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
        of_all = (x - x.mean()) / x.std()
        less_one = (x - x.mean(0)) / x.std(0, ddof=1)
        refuse(
            new_w,
            {
                "each column has its own mean and deviation, over axis 0, and yours are "
                "the rows'": w - 0.1 * 2 * of_rows.T @ (of_rows @ w - y) / 16,
                "each column has its own mean and deviation, and you took one for all "
                "columns": w - 0.1 * 2 * of_all.T @ (of_all @ w - y) / 16,
                "the deviation divides by the number of rows, not by one less": w
                - 0.1 * 2 * less_one.T @ (less_one @ w - y) / 16,
                "your step is half as long: the derivative of a square has a factor of "
                "2": w + update / 2,
                "x wasn't normalized": w - 0.1 * 2 * x.T @ (x @ w - y) / 16,
                "the loss is the mean over the rows, not their sum": w + 16 * update,
                "the learning rate is 0.1": w + update / 10,
                "the sign is wrong: w - 0.1 * gradient": w - update,
            },
        )
        require(
            np.allclose(new_w, wanted, rtol=1e-3, atol=1e-3),
            f"w is {wanted.round(3)}, yours is {new_w}",
        )
        communication = collectives(step.lower(*arguments).compile().as_text())
        require(
            all(collective.kind != "all-gather" for collective in communication),
            "right, but an all-gather gives each device the whole batch, so each does "
            "all the work: leave the rows split",
        )
        unsplit_batches = {
            "of NumPy arrays": (x, y),
            "that every device holds whole": jax.device_put((x, y), P()),
            "whose x every device holds whole": jax.device_put(
                (x, y), (P(), P("data"))
            ),
            "whose x is split by columns": jax.device_put(
                (x, y), (P(None, "data"), P("data"))
            ),
        }
        for name, batch in unsplit_batches.items():
            try:
                step(jnp.asarray(w), *batch)
            except AssertionError:
                continue
            require(
                False,
                f"a batch {name} was accepted, although its rows are not split: "
                "assert jax.typeof(x).sharding.spec[0] == 'data'",
            )
