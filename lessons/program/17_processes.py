"""Train a small network on all processes' devices: `PROCESSES=1 python 17_processes.py FOLDER`.

PROCESSES=2 COORDINATOR=127.0.0.1:1234 PROCESS_ID=0 python 17_processes.py FOLDER  # in a terminal
PROCESSES=2 COORDINATOR=127.0.0.1:1234 PROCESS_ID=1 python 17_processes.py FOLDER  # in another
PROCESSES=16 srun --ntasks-per-node=8 --gpus-per-node=8 python 17_processes.py FOLDER  # Slurm
"""

import os
import sys

import jax
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

if len(sys.argv) != 2:
    sys.exit("name a folder for the checkpoints on the command line")
if "PROCESSES" not in os.environ:  # or two that don't connect would write into one folder
    sys.exit("say in PROCESSES how many processes you start, as in PROCESSES=1")

B, EPOCHS = 128, 5  # examples per update, passes over the data

os.environ["NPROC"] = "16"  # threads for 8 simulated devices: jax before 0.12 may abort with fewer
processes = int(os.environ["PROCESSES"])  # all that you start, on all machines together
jax.config.update("jax_num_cpu_devices", max(1, 8 // processes))  # unless there are GPUs or TPUs
if "COORDINATOR" in os.environ:  # before JAX starts its devices
    process_id = int(os.environ["PROCESS_ID"])
    jax.distributed.initialize(os.environ["COORDINATOR"], processes, process_id)
elif processes > 1:
    jax.distributed.initialize()  # asks Slurm or Open MPI, and takes one GPU for each process
assert jax.process_count() == processes, f"{jax.process_count()} processes are connected"
mesh = Mesh(jax.devices(), ("data",))  # the devices of all processes
assert B % mesh.size == 0, f"B = {B} is not divisible by {mesh.size} devices"
print(f"process {jax.process_index()} has {jax.local_device_count()} of {mesh.size} devices")
replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))


def make_clouds(examples, seed):
    """Points in ten clouds that overlap: inputs [n, 64], labels [n]."""
    centres = np.random.default_rng(0).normal(size=(10, 64))
    random = np.random.default_rng(seed)
    labels = random.integers(10, size=examples)
    inputs = centres[labels] + 2.5 * random.normal(size=(examples, 64))
    return inputs.astype(np.float32), labels.astype(np.int32)


def batches(inputs, labels, seed):
    """All examples once, shuffled, B at a time. The last batch is padded with rows of weight 0."""
    order = np.random.default_rng(seed).permutation(len(inputs))
    for start in range(0, len(order), B):
        rows = order[start : start + B]
        weights = (np.arange(B) < len(rows)).astype(np.float32)
        rows = np.resize(rows, B)  # repeats rows if there are fewer than B
        yield inputs[rows], labels[rows], weights


class Network(nnx.Module):
    """Inputs [b, 64] to logits [b, 10]."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 32, rngs=rngs)
        self.output = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, inputs):
        return self.output(nnx.relu(self.hidden(inputs)))


def loss_sums(model, batch):
    """The loss, summed over the batch, and the sums that the metrics are made of."""
    inputs, labels, weights = batch
    logits = model(inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    correct = logits.argmax(-1) == labels
    sums = {"loss": weights @ losses, "correct": weights @ correct, "count": weights.sum()}
    return sums["loss"], sums


def init_state():
    model = Network(nnx.Rngs(0))
    return model, optimizer.init(model)


def place_batch(batch):
    """Give the devices of this process the rows that the sharding names."""

    def place(x):
        return jax.make_array_from_callback(x.shape, split, lambda rows: x[rows])

    return jax.tree.map(place, batch)


def train_step(state, batch):
    """One update: the new state, and the metric sums of this batch."""
    model, optimizer_state = state
    gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
    count = sums["count"]
    gradients = jax.tree.map(lambda g: g / count, gradients)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return (optax.apply_updates(model, updates), optimizer_state), sums


def eval_step(state, batch):
    return loss_sums(state[0], batch)[1]


options = {"in_shardings": (replicated, split), "out_shardings": replicated}
train_step = jax.jit(train_step, **options, donate_argnums=0)
eval_step = jax.jit(eval_step, **options)


def report(all_sums):
    """Mean loss and accuracy over the examples of some batches."""
    totals = jax.tree.map(lambda *sums: float(sum(sums)), *jax.device_get(all_sums))
    count = totals["count"]
    return f"loss {totals['loss'] / count:.4f}, accuracy {totals['correct'] / count:.4f}"


train_data, test_data = make_clouds(5_000, seed=1), make_clouds(1_000, seed=2)
optimizer = optax.adam(3e-3)
state = jax.jit(init_state, out_shardings=replicated)()  # the same in all processes

directory = os.path.abspath(sys.argv[1])  # Orbax wants an absolute path
checkpoints = ocp.CheckpointManager(directory, options=ocp.CheckpointManagerOptions(max_to_keep=2))
last_epoch = checkpoints.latest_step()  # None if there is no checkpoint
if last_epoch is not None:
    state = checkpoints.restore(last_epoch, args=ocp.args.StandardRestore(state))
    print("resumes after epoch", last_epoch)

for epoch in range(0 if last_epoch is None else last_epoch + 1, EPOCHS):
    train_sums = []
    for batch in batches(*train_data, seed=epoch):
        state, sums = train_step(state, place_batch(batch))
        train_sums.append(sums)
    test_sums = [eval_step(state, place_batch(batch)) for batch in batches(*test_data, seed=0)]
    if jax.process_index() == 0:  # all have computed the sums, so this needs no other process
        print(f"epoch {epoch}: {report(train_sums)} | test: {report(test_sums)}")
    checkpoints.save(epoch, args=ocp.args.StandardSave(state))  # written whole or not at all

checkpoints.close()  # waits for the last one
