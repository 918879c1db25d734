"""Checks of lesson 19's exercises."""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.lessons.checks import close, mesh_of, require

TOKENS = 4  # that each example counts, as 64 do in the program
SETTINGS = {"WIDTH": 128, "PEAK_RATE": 5e-3, "DROPOUT": 0.1}


def update_once(answer):
    """Accept one device's update, whatever the number of micro-batches."""
    for K in (1, 2, 4):
        check_updates(answer, K)


def check_updates(answer, K):
    """Check two updates of 8 rows, of which 3 are padding, in K micro-batches."""
    random = np.random.default_rng(0)
    examples = random.normal(size=(8, 3)).astype(np.float32)
    weights = np.array([1, 1, 1, 0, 1, 1, 0, 0], np.float32)
    indices = np.array([7, 4, 12, 0, 3, 9, 7, 4])
    model = {"w": jnp.asarray(random.normal(size=3), jnp.float32), "b": jnp.zeros(())}
    optimizer = optax.adamw(0.1, weight_decay=0.1)
    state = model, optimizer.init(model), jnp.int32(5)
    calls = []

    def accumulate(f, model, batch):
        """The sums of one device that has all rows."""
        calls.append(f)
        size = 8 // K
        parts = []
        for start in range(0, 8, size):
            rows = slice(start, start + size)
            parts.append(f(model, jax.tree.map(lambda x, rows=rows: x[rows], batch)))
        return jax.tree.map(lambda *leaves: sum(leaves), *parts)

    def one_device(step, indices):
        """The new model, optimizer state and sums with these masks, without a cut."""
        model, optimizer_state, _ = state
        batch = examples, weights, example_keys(step, indices)
        gradients, sums = jax.grad(masked_sums, has_aux=True)(model, batch)
        gradients = jax.tree.map(lambda g: g / sums["count"], gradients)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
        return optax.apply_updates(model, updates), optimizer_state, sums

    for update in (5, 6):
        calls.clear()
        batch = examples, weights, indices
        arguments = masked_sums, optimizer, accumulate, example_keys, state, batch
        found = answer(*arguments)
        require(
            isinstance(found, tuple) and len(found) == 2,
            "return two things, the new state and the sums",
        )
        new_state, sums = found
        require(
            isinstance(new_state, tuple) and len(new_state) == 3,
            "the new state has the parts of the old one: model, optimizer_state, step",
        )
        require(
            len(calls) == 1,
            f"your update calls accumulate {len(calls)} times, and each call ends in "
            "an all-reduce: jax.grad(loss_sums, has_aux=True) returns both the "
            "gradients and the sums",
        )
        require(
            int(new_state[2]) == update + 1,
            f"update {update} is followed by update {update + 1}, and yours by update "
            f"{int(new_state[2])}: the next masks depend on this number",
        )
        mistakes = {
            "the masks don't depend on the update's number: give example_keys the "
            "step of the state": one_device(0, indices),
            "these are the next update's masks: make the keys before you raise the "
            "step": one_device(update + 1, indices),
            "the masks depend on the place in the batch, not on the example: give "
            "example_keys the indices": one_device(update, np.arange(8)),
        }
        for message, (_, optimizer_state, _) in mistakes.items():
            require(not close(new_state[1], optimizer_state), message)
        wanted_model, wanted_optimizer_state, wanted_sums = one_device(update, indices)
        require(
            isinstance(sums, dict) and close(sums, wanted_sums),
            f"the sums are {wanted_sums}, yours are {sums}",
        )
        ratios = gradient_means(new_state[1]) / gradient_means(wanted_optimizer_state)
        require(
            np.allclose(ratios, 1, rtol=1e-3)
            or not np.allclose(ratios, ratios[0], rtol=1e-3),
            f"the optimizer gets {ratios[0]:.3g} times the mean gradient: divide the "
            f"sums once, by sums['count'], which is {float(wanted_sums['count']):.0f}",
        )
        require(
            close(new_state[1], wanted_optimizer_state),
            f"with {K} micro-batches, the optimizer gets another gradient than on one "
            "device. Divide after accumulate, because the micro-batches have different "
            "amounts of padding",
        )
        require(
            close(new_state[0], wanted_model),
            "the new model isn't the old one with the optimizer's updates applied",
        )
        state = new_state


def example_keys(step, indices):
    """As in the program."""
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


def masked_sums(model, batch):
    """The loss sums of a linear model whose inputs are dropped by the rows' keys."""
    examples, weights, keys = batch
    require(
        jax.dtypes.issubdtype(getattr(keys, "dtype", int), jax.dtypes.prng_key),
        "loss_sums wants (examples, weights, keys) with a key for each row: make them "
        "with example_keys",
    )
    masks = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (3,)))(keys)
    outputs = jnp.where(masks, examples, 0) @ model["w"] + model["b"]
    sums = {"loss": weights @ jnp.square(outputs - 1), "count": TOKENS * weights.sum()}
    return sums["loss"], sums


def gradient_means(optimizer_state):
    """Return Adam's averages of the gradients in one array."""
    leaves = jax.tree.leaves(optimizer_state[0].mu)
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def place_rows(answer):
    """Accept a global array of which each device's rows are read alone."""
    devices = jax.devices()
    mesh = Mesh(np.array([devices[n] for n in (2, 0, 3, 1)]), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    examples = np.arange(300).reshape(60, 5)
    rows = np.array([31, 7, 44, 7, 0, 59, 12, 3, 26, 58, 1, 17])
    reads = []

    def read(numbers):
        numbers = np.asarray(numbers)
        require(
            numbers.ndim == 1 and numbers.dtype.kind in "iu",
            "read wants the numbers of some examples, an array as `rows` is, and you "
            f"gave it the shape {numbers.shape}",
        )
        reads.append(numbers)
        return examples[numbers]

    try:
        array = answer(read, rows, (12, 5), sharding)
    except IndexError as error:
        require(
            "too many indices" not in str(error),
            "JAX calls your function with a tuple of slices, one for each axis, but "
            "`rows` has only one axis: index it with the first slice",
        )
        raise
    require(isinstance(array, jax.Array), "return a jax.Array")
    require(
        array.shape == (12, 5),
        f"the global shape is (12, 5), yours is {array.shape}",
    )
    require(
        array.sharding.is_equivalent_to(sharding, 2),
        f"its sharding is {array.sharding}, asked for was {sharding}",
    )
    most = max(len(numbers) for numbers in reads)
    require(
        most <= 3,
        f"read was called with {most} rows at once, and a device has 3 of the 12. The "
        "other devices may belong to other processes, so their rows aren't yours to "
        "read",
    )
    require(
        not np.array_equal(array, examples[:12]),
        "these are examples 0 to 11. Row i of the batch is example rows[i], because "
        "the examples were shuffled",
    )
    require(
        np.array_equal(array, examples[rows]),
        f"the first column should be {examples[rows][:, 0].tolist()}, yours is "
        f"{np.asarray(array)[:, 0].tolist()}",
    )
    numbers = np.concatenate(reads)
    require(
        sorted(numbers) == sorted(rows),
        f"each row is read once, which makes {len(rows)}, and you read {len(numbers)}",
    )


def resume(answer):
    """Accept the newest state on the new devices, and the epoch that comes next."""

    def make_state(N, value):
        """A state on N devices, partly split, in which every number is `value`."""
        split = NamedSharding(mesh_of(N), PartitionSpec("data"))
        replicated = NamedSharding(mesh_of(N), PartitionSpec())
        model = {
            "w": jax.device_put(jnp.full((8, 2), value), split),
            "b": jax.device_put(jnp.full(3, value), replicated),
        }
        moments = {"mu": jax.device_put(jnp.full((8, 2), value), split)}
        return model, moments, jax.device_put(jnp.int32(value), replicated)

    with tempfile.TemporaryDirectory() as folder:
        fresh = make_state(2, -1.0)
        with ocp.CheckpointManager(Path(folder) / "run") as checkpoints:
            require_state(answer(checkpoints, fresh), fresh, 0, "without a checkpoint")
        for epoch in (0, 1, 2):
            saved = jax.tree.leaves(make_state(4, 10.0 + epoch))
            with ocp.CheckpointManager(Path(folder) / "run") as checkpoints:
                checkpoints.save(epoch, args=ocp.args.StandardSave(saved))
            with ocp.CheckpointManager(Path(folder) / "run") as checkpoints:
                found = answer(checkpoints, fresh)
            require_state(
                found,
                make_state(2, 10.0 + epoch),
                epoch + 1,
                f"after a kill with the newest checkpoint {epoch}",
            )


def require_state(found, wanted, next_epoch, case):
    """Check a state, the devices it's on, and the number of the next epoch."""
    require(
        isinstance(found, tuple) and len(found) == 2,
        "return two things, the state and the number of the next epoch",
    )
    state, epoch = found
    require(
        jax.tree.structure(state) == jax.tree.structure(wanted),
        f"{case}: the state has the structure {jax.tree.structure(wanted)}, yours has "
        f"{jax.tree.structure(state)}",
    )
    require(
        close(state, wanted),
        f"{case}: each number of the state should be {int(wanted[2])}, the "
        f"first of yours is {float(np.ravel(jax.tree.leaves(state)[0])[0]):.0f}. The "
        "newest checkpoint counts, and if there's none, the state stays as it is. The "
        "first checkpoint has the number 0",
    )
    require(
        epoch == next_epoch,
        f"{case} the run goes on with epoch {next_epoch}, yours with {epoch}",
    )
    pairs = zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True)
    for leaf, expected in pairs:
        sharding = getattr(leaf, "sharding", None)
        require(
            sharding is not None
            and sharding.is_equivalent_to(expected.sharding, expected.ndim),
            f"{case}: the arrays should lie where the new state's arrays lie, over "
            f"{expected.sharding}, and one of yours has {sharding}. Restore into the "
            "leaves of the new state",
        )


def fixed_check_settings(answer):
    """Accept a guard that compares with the first start, and changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        answer(file, SETTINGS)
        require(file.exists(), "the first start writes the file")
        require_accepted(answer, file, "a second start with the same settings")
        require_refused(answer, file, SETTINGS | {"PEAK_RATE": 5e-2}, ["PEAK_RATE"])
        require_accepted(
            answer, file, "a start with the first settings, after a refusal"
        )
        require_refused(answer, file, SETTINGS | {"PEAK_RATE": 5e-2}, ["PEAK_RATE"])
        changed = SETTINGS | {"WIDTH": 256, "DROPOUT": 0.0}
        require_refused(answer, file, changed, ["DROPOUT", "WIDTH"])
        require_refused(answer, file, SETTINGS | {"LAYERS": 2}, ["LAYERS"])
        fewer = {"WIDTH": 128, "PEAK_RATE": 5e-3}
        require_refused(answer, file, fewer, ["DROPOUT"])
        # A setting None that only the later start has.
        require_refused(answer, file, SETTINGS | {"CLIP": None}, ["CLIP"])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        first = SETTINGS | {"CLIP": None, "BETAS": (0.9, 0.95)}
        tuples = "with a tuple, of which JSON makes a list,"
        require_accepted(answer, file, f"the first start {tuples}", first)
        require_accepted(answer, file, f"a second start {tuples}", first)
        changed = first | {"BETAS": (0.9, 0.99)}
        require_refused(answer, file, changed, ["BETAS"], first)
        # A setting None that only the first start has.
        without_clip = SETTINGS | {"BETAS": (0.9, 0.95)}
        require_refused(answer, file, without_clip, ["CLIP"], first)


def require_accepted(answer, file, start, first=SETTINGS):
    """Check that a start with the first settings is let through."""
    try:
        found = answer(file, first)
    except ValueError as error:
        require(False, f"{start} was refused: {error}")
    from_json = json.loads(json.dumps(first))
    require(found in (first, from_json), f"return the settings, yours returned {found}")


def require_refused(answer, file, settings, names, first=SETTINGS):
    """Check that a start is refused with the names of what differs."""
    try:
        answer(file, settings)
    except ValueError as error:
        message = str(error)
    else:
        require(
            False,
            f"the first start had {first}, and a later one with {settings} wasn't "
            "refused. Compare with what the first start wrote, and leave the file as "
            "it is",
        )
    for name in first | settings:
        require(
            (name in message) == (name in names),
            f"{' and '.join(names)} changed: name what differs and nothing else. "
            f"Your message: {message}",
        )
