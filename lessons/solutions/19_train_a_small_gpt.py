"""Solutions of lesson 19's exercises."""

import json

import jax
import optax
import orbax.checkpoint as ocp


def update_once(loss_sums, optimizer, accumulate, example_keys, state, batch):
    """The keys travel with the rows, so it doesn't matter how `accumulate` cuts the batch. The sums are divided once, by a
    count that has been added up over all micro-batches and devices. And the step counts on, because otherwise an example
    would get the same mask in every epoch."""
    model, optimizer_state, step = state
    examples, weights, indices = batch
    batch = examples, weights, example_keys(step, indices)
    gradients, sums = accumulate(jax.grad(loss_sums, has_aux=True), model, batch)
    gradients = jax.tree.map(lambda g: g / sums["count"], gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return (optax.apply_updates(model, updates), optimizer_state, step + 1), sums


def place_rows(read, rows, shape, sharding):
    """JAX calls the function once for each device of this process, with the place of its rows in the batch. `rows` turns
    the place into the numbers of examples."""
    return jax.make_array_from_callback(shape, sharding, lambda place: read(rows[place[0]]))


def resume(checkpoints, state):
    """The leaves of the new state say where the restored ones go, so it doesn't matter which devices wrote them. A run that
    ended after epoch 0 left checkpoint 0, which an `if` takes for no checkpoint: ask for None."""
    epoch = checkpoints.latest_step()
    if epoch is None:
        return state, 0
    leaves, structure = jax.tree.flatten(state)
    leaves = checkpoints.restore(epoch, args=ocp.args.StandardRestore(leaves))
    return jax.tree.unflatten(structure, leaves), epoch + 1


def fixed_check_settings(file, settings):
    """Only the first start writes. A name that only one of the two has counts as a difference, even with the value None.

    All processes of the first start may write at once. So each writes a file of its own, and then renames it. A rename
    happens in one step, so a process that reads, or a start after a kill, finds the whole file or none.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{jax.process_index()}")
        part.write_text(json.dumps(settings))
        part.replace(file)
    saved = json.loads(file.read_text())
    current = json.loads(json.dumps(settings))  # with lists for tuples, as in the file
    names = sorted(saved.keys() | current.keys())
    changed = [name for name in names if saved.get(name, ...) != current.get(name, ...)]
    if changed:
        raise ValueError(f"{file} has other values of {changed}: choose a new folder")
    return settings
