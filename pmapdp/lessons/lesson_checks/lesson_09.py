"""Checks of lesson 09's exercises: on a mesh of four devices."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, mesh_of, require

N = 4
LEARNING_RATE = 0.1
FEWEST_EXAMPLES = 100  # more than any parameter has numbers
MOST_WORK = 0.5  # of one device's; a quarter each, and some work that isn't split


def require_split(step, arguments, one_device_step):
    """Reject a jitted `step` whose devices repeat each other's work.

    Args:
        step: the answer's function.
        arguments: host arrays by their names, in order.
        one_device_step: the same step, not jitted.

    Returns:
        the results of `step`, which are replicated.
    """
    require(
        hasattr(step, "lower"),
        "return the jitted function itself, whose program can be read: "
        "end with return jax.jit(...)",
    )
    try:
        program = step.lower(*arguments.values()).compile()
    except ValueError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        require(
            False,
            f"JAX refuses the arguments ({', '.join(arguments)}) or the results: {reason}. "
            "Each argument has its own entry in in_shardings, and out_shardings is for "
            "the results",
        )
    results = step(*arguments.values())
    for array in jax.tree.leaves(results):
        is_on_mesh = isinstance(array, jax.Array) and len(array.devices()) == N
        require(
            is_on_mesh and array.sharding.is_fully_replicated,
            "the results must be on every device of the mesh: "
            "out_shardings=NamedSharding(mesh, PartitionSpec())",
        )
    one_device = jax.jit(one_device_step).lower(*arguments.values()).compile()
    share = program.cost_analysis()["flops"] / one_device.cost_analysis()["flops"]
    require(
        share < MOST_WORK,
        f"each of the {N} devices does {share:.2f} of the work of one device alone, "
        "so it computes every example: in_shardings can split host arrays",
    )
    (shardings, _) = program.input_shardings
    for array, sharding in zip(
        jax.tree.leaves(tuple(arguments.values())),
        jax.tree.leaves(shardings),
        strict=True,
    ):
        is_whole = sharding.shard_shape(np.shape(array)) == np.shape(array)
        require(
            np.size(array) < FEWEST_EXAMPLES or not is_whole,
            f"a whole array of shape {np.shape(array)} goes to every device: split all "
            "arrays of the batch",
        )
    return results


def make_trainer(answer):
    """Accept a step that makes one device's update from host arrays, split."""
    random = np.random.default_rng(0)
    params = {
        "w": random.normal(size=3).astype(np.float32),
        "offset": np.float32(random.normal()),
    }
    batch = {
        "x": random.normal(size=(512, 3)).astype(np.float32),
        "y": random.normal(size=512).astype(np.float32),
    }

    def loss(params, batch):
        predictions = batch["x"] @ params["w"] + params["offset"]
        return jnp.square(predictions - batch["y"]).mean()

    arguments = {"params": params, "batch": batch}
    step = answer(loss, mesh_of(N))
    results = require_split(step, arguments, jax.value_and_grad(loss))
    is_pair = isinstance(results, tuple | list) and len(results) == 2
    require(is_pair, "the step returns (params, loss)")
    new_params, new_loss = results
    require(
        jax.tree.structure(new_params) == jax.tree.structure(params),
        "new params must be a tree like the old ones",
    )
    value, gradients = jax.value_and_grad(loss)(params, batch)
    require(
        close(new_loss, value, atol=1e-5),
        f"the loss is {np.ravel(new_loss)[0]:.4f}, on one device it is {value:.4f}",
    )
    for name, gradient in gradients.items():
        update = new_params[name] - params[name]
        expected = -LEARNING_RATE * gradient
        ratio = np.vdot(update, expected) / np.vdot(expected, expected)
        require(
            close(update, expected, atol=1e-5),
            f"the update of {name} is {ratio:.2f} times as long as on one device, "
            f"p - {LEARNING_RATE} * gradient",
        )


def fixed_evaluation(answer):
    """Accept a function that finds the accuracy, with the examples split."""
    random = np.random.default_rng(0)
    W = random.normal(size=(5, 3)).astype(np.float32)
    images = random.normal(size=(240, 5)).astype(np.float32)
    classes = (images @ W).argmax(1)
    labels = random.integers(0, 3, 240).astype(np.int32)
    labels[:60] = classes[:60]  # so that the first device's accuracy differs

    def accuracy(W, images, labels):
        return ((images @ W).argmax(1) == labels).mean()

    arguments = {"W": W, "images": images, "labels": labels}
    found = require_split(answer(mesh_of(N)), arguments, accuracy)
    wanted = (classes == labels).mean()
    require(
        close(found, wanted, atol=1e-6),
        f"the accuracy is {wanted:.4f}, yours is {np.ravel(found)[0]:.4f}",
    )
