"""Train a small GPT, on one device or on many machines: `PROCESSES=1 python 19_gpt.py FOLDER`.

Run it again to continue from the last finished epoch. DEVICES=1 simulates one device, not eight.

PROCESSES=2 COORDINATOR=127.0.0.1:1234 PROCESS_ID=0 python 19_gpt.py FOLDER  # in one terminal
PROCESSES=2 COORDINATOR=127.0.0.1:1234 PROCESS_ID=1 python 19_gpt.py FOLDER  # in another
PROCESSES=8 srun --ntasks=8 --gpus-per-node=8 python 19_gpt.py FOLDER  # with Slurm, on 8 GPUs
"""

import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if len(sys.argv) != 2:
    sys.exit("name a folder for the checkpoints on the command line")
if "PROCESSES" not in os.environ:  # or two that don't connect would write into one folder
    sys.exit("say in PROCESSES how many processes you start, as in PROCESSES=1")

# The text: the beginning of Python's own library. A token is a byte, so there are 256 of them.
FILES = sorted(Path(os.__file__).parent.glob("*.py"))
BYTES = 70_000
LENGTH = 64  # tokens that the network sees at once

# The network
WIDTH = 96  # features of a token
HEADS = 4  # WIDTH is divisible by it
LAYERS = 1
DROPOUT = 0.1  # of the features that a layer adds

# Training
B = 16  # examples per update
K = 2  # micro-batches per update. B is divisible by K times the number of devices
EPOCHS = 3  # passes over the data
PEAK_RATE = 5e-3  # the highest learning rate, after a tenth of all updates


# Many processes (lesson 17), connected before JAX starts its devices

os.environ["NPROC"] = "16"  # threads for 8 simulated devices: jax before 0.12 may abort with fewer
processes = int(os.environ["PROCESSES"])  # on all machines together
devices = max(1, int(os.environ.get("DEVICES", "8")) // processes)
jax.config.update("jax_num_cpu_devices", devices)  # simulated, unless there are GPUs or TPUs
if "COORDINATOR" in os.environ:
    jax.distributed.initialize(os.environ["COORDINATOR"], processes, int(os.environ["PROCESS_ID"]))
elif processes > 1:
    jax.distributed.initialize()  # asks Slurm, and takes one GPU for each process
assert jax.process_count() == processes, f"{jax.process_count()} processes are connected"
is_first = jax.process_index() == 0

mesh = Mesh(jax.devices(), ("data",))  # the devices of all processes
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
assert B % (K * mesh.size) == 0, f"B = {B} is not divisible by K = {K} x {mesh.size} devices"
print(f"process {jax.process_index()} has {jax.local_device_count()} of {mesh.size} devices")


# Batches (lessons 03 and 17)


def read_examples():
    """The text in pieces of LENGTH tokens and the one that follows, shuffled: [n, LENGTH + 1]."""
    text = b"".join(file.read_bytes() for file in FILES)[:BYTES]
    n = len(text) // (LENGTH + 1)  # whole examples
    examples = np.frombuffer(text[: n * (LENGTH + 1)], np.uint8).reshape(n, LENGTH + 1)
    return np.random.default_rng(0).permutation(examples)  # or the first files are the test data


def batches(examples, seed):
    """All examples once, shuffled, B at a time. The last batch is padded with rows of weight 0."""
    order = np.random.default_rng(seed).permutation(len(examples))
    for start in range(0, len(order), B):
        rows = order[start : start + B]
        weights = (np.arange(B) < len(rows)).astype(np.float32)
        rows = np.resize(rows, B)  # repeats rows if there are fewer than B
        yield examples[rows], weights, rows


def place_batch(batch):
    """Give the devices of this process the rows that the sharding names."""

    def place(x):
        return jax.make_array_from_callback(x.shape, split, lambda rows: x[rows])

    return jax.tree.map(place, batch)


# Dropout by example (lesson 08)


def example_keys(step, indices):
    """One key per example, from the seed, the update and the example's index."""
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


def dropout(x, keys, layer):
    """Features [b, T, WIDTH] with some set to 0, or all of them as they are if keys is None."""
    if keys is None:
        return x

    def keep(key):
        return jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - DROPOUT, x.shape[1:])

    return jnp.where(jax.vmap(keep)(keys), x / (1 - DROPOUT), 0)


# The network. On GPUs and TPUs its blocks compute in bfloat16 (lesson 20)

compute_dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16


class Block(nnx.Module):
    """Features [b, T, WIDTH] to the same: look at the tokens so far, then at each one alone."""

    def __init__(self, rngs):
        def linear(inputs, outputs):
            return nnx.Linear(inputs, outputs, dtype=compute_dtype, rngs=rngs)

        self.attention_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.qkv = linear(WIDTH, 3 * WIDTH)  # queries, keys and values
        self.attention_output = linear(WIDTH, WIDTH)
        self.mlp_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.mlp_hidden = linear(WIDTH, 4 * WIDTH)
        self.mlp_output = linear(4 * WIDTH, WIDTH)

    def __call__(self, x, keys, layer):
        b, T, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).reshape(b, T, 3, HEADS, WIDTH // HEADS)
        q, k, v = jnp.moveaxis(qkv, 2, 0)
        attention = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(b, T, WIDTH)
        x += dropout(self.attention_output(attention), keys, 2 * layer)
        hidden = nnx.gelu(self.mlp_hidden(self.mlp_norm(x)))
        return x + dropout(self.mlp_output(hidden), keys, 2 * layer + 1)


class Network(nnx.Module):
    """Tokens [b, T] to logits of the tokens that follow [b, T, 256]."""

    def __init__(self, rngs):
        self.tokens = nnx.Embed(256, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.logits = nnx.Linear(WIDTH, 256, rngs=rngs)

    def __call__(self, tokens, keys=None):
        x = self.tokens(tokens) + self.positions(jnp.arange(tokens.shape[1]))
        for layer, block in enumerate(self.blocks):
            x = block(x, keys, layer)
        return self.logits(self.norm(x))


def loss_sums(model, batch):
    """The loss, summed over the tokens, and the sums that the metrics are made of."""
    examples, weights, keys = batch
    tokens = examples.astype(jnp.int32)
    logits = model(tokens[:, :-1], keys)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
    sums = {"loss": weights @ losses.sum(1), "count": LENGTH * weights.sum()}
    return sums["loss"], sums


# Micro-batches (lesson 13)


def accumulate(f, model, batch):
    """The sum of f over K micro-batches in turn, and then over all devices."""

    @jax.shard_map(mesh=mesh, in_specs=(replicated.spec, split.spec), out_specs=replicated.spec)
    def add_up(model, batch):  # on one device, with its own rows
        model = lax.pcast(model, "data", to="varying")  # or every jax.grad adds up over devices
        micro_batches = jax.tree.map(lambda x: x.reshape(K, -1, *x.shape[1:]), batch)
        first = jax.tree.map(lambda x: x[0], micro_batches)
        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(f, model, first))

        def add(totals, micro_batch):
            return jax.tree.map(jnp.add, totals, f(model, micro_batch)), None

        totals, _ = lax.scan(add, zeros, micro_batches)
        return lax.psum(totals, "data")  # the one all-reduce

    return add_up(model, batch)


# The update (lesson 09)


def train_step(state, batch):
    """One update: the new state, and the metric sums of this batch."""
    model, optimizer_state, step = state
    examples, weights, indices = batch
    batch = examples, weights, example_keys(step, indices)
    gradients, sums = accumulate(jax.grad(loss_sums, has_aux=True), model, batch)
    count = sums["count"]
    gradients = jax.tree.map(lambda g: g / count, gradients)
    gradients = lax.with_sharding_constraint(gradients, replicated)  # or the clipping all-reduces
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return (optax.apply_updates(model, updates), optimizer_state, step + 1), sums


def eval_step(state, batch):
    examples, weights, _ = batch
    return loss_sums(state[0], (examples, weights, None))[1]


def report(all_sums):
    """Mean loss over the tokens of some batches."""
    totals = jax.tree.map(lambda *sums: float(sum(sums)), *jax.device_get(all_sums))
    return f"loss {totals['loss'] / totals['count']:.7f}"  # all digits, to compare runs


# A state that is split (lesson 16)


def init_state():
    model = Network(nnx.Rngs(0))
    return model, optimizer.init(model), jnp.int32(0)


def shard(x):
    """Split the first axis over the devices, if they divide its length."""
    return split if x.ndim and x.shape[0] % mesh.size == 0 else replicated


examples = read_examples()
test_data, train_data = np.split(examples, [len(examples) // 10])
updates = EPOCHS * -(-len(train_data) // B)
schedule = optax.warmup_cosine_decay_schedule(0, PEAK_RATE, updates // 10, updates)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))
shardings = jax.tree.map(shard, jax.eval_shape(init_state))  # no arrays yet
state = jax.jit(init_state, out_shardings=shardings)()  # each device makes its part only
options = {"in_shardings": (shardings, split)}
train_step = jax.jit(train_step, **options, out_shardings=(shardings, replicated), donate_argnums=0)
eval_step = jax.jit(eval_step, **options, out_shardings=replicated)


# Resume (lesson 14)

directory = os.path.abspath(sys.argv[1])  # Orbax wants an absolute path
checkpoints = ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(max_to_keep=2))
last_epoch = checkpoints.latest_step()  # None if there is no checkpoint
if last_epoch is not None:
    leaves, structure = jax.tree.flatten(state)  # Orbax can't name the parts of an nnx.List
    leaves = checkpoints.restore(last_epoch, args=ocp.args.StandardRestore(leaves))
    state = jax.tree.unflatten(structure, leaves)
    print("resumes after epoch", last_epoch)

for epoch in range(0 if last_epoch is None else last_epoch + 1, EPOCHS):
    start = time.perf_counter()
    train_sums = []
    for batch in batches(train_data, seed=epoch):
        state, sums = train_step(state, place_batch(batch))
        train_sums.append(sums)
    train_report = report(train_sums)  # waits for the devices
    speed = LENGTH * len(train_data) / (time.perf_counter() - start)
    test_sums = [eval_step(state, place_batch(batch)) for batch in batches(test_data, seed=0)]
    if is_first:  # all have computed the sums, so this needs no other process
        test_report = report(test_sums)
        print(f"epoch {epoch}: {train_report} | test: {test_report} | {speed:,.0f} tokens/s")
    # Written whole or not at all
    checkpoints.save(epoch, args=ocp.args.StandardSave(jax.tree.leaves(state)))

checkpoints.close()  # waits for the last one


# What it has learned

TEMPERATURE = 0.7  # below 1, likely tokens become likelier


def next_token(model, tokens, seed):
    """A token to follow `tokens` [LENGTH], drawn at random. Likely ones are drawn more often."""
    logits = model(tokens[None])[0, -1]
    return jax.random.categorical(jax.random.key(seed), logits / TEMPERATURE)


next_token = jax.jit(next_token, out_shardings=replicated)
# The row with the most letters is the beginning, because after spaces alone it writes spaces
letters = (test_data[:, :LENGTH] >= ord("a")).sum(axis=1)
text = test_data[letters.argmax(), :LENGTH].astype(np.int32)
for seed in range(200):
    text = np.append(text, next_token(state[0], text[-LENGTH:], seed))
if is_first:
    print(bytes(text.tolist()).decode("latin-1"))
