"""Data-parallel training with several processes, in plain JAX. Start it once for each process:

python two_processes.py COORDINATOR PROCESS PROCESSES RESULT
"""

import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

coordinator, process, processes, result = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
os.environ["NPROC"] = "16"  # threads enough for simulated devices before jax 0.12 (lesson 00)
jax.config.update("jax_num_cpu_devices", 4 // processes)
if processes > 1:
    jax.distributed.initialize(coordinator, num_processes=processes, process_id=process)


def say(*words):
    """Print on stderr: gloo, which carries the collectives on CPUs, prints its own lines on stdout."""
    print(*words, file=sys.stderr)


mesh = Mesh(np.array(jax.devices()), ("data",))  # the devices of all processes
split, replicated = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())


@jax.jit
def step(w, x, y):
    """Written as for one device: the mean is over the rows of all processes."""
    return w - 0.1 * jax.grad(lambda w: jnp.square(x @ w - y).mean())(w)


w = jax.device_put(np.zeros(3, np.float32), replicated)  # every process gives the same
for number in range(5):
    random = np.random.default_rng([0, number])  # every process knows the whole order ...
    rows, target = random.normal(size=(16, 3)).astype(np.float32), random.normal(size=16).astype(np.float32)
    mine = slice(16 // processes * process, 16 // processes * (process + 1))  # ... and takes its own rows
    x, y = (jax.make_array_from_process_local_data(split, part[mine]) for part in (rows, target))
    w = step(w, x, y)

say(f"devices {jax.device_count()}, of which {jax.local_device_count()} here")
say(f"jit: x is {x.shape}, of which {sum(len(shard.data) for shard in x.addressable_shards)} rows here")
local = jax.pmap(lambda x: lax.pmean(x.mean(), "data"), axis_name="data")(rows[mine].reshape(-1, 4, 3))
say(f"pmap: the result is {local.shape}, of the devices here alone; each has the mean over all, {local[0]:.4f}")
np.testing.assert_allclose(local, rows.mean(), rtol=1e-5)
try:
    np.asarray(x)
except RuntimeError as error:
    say("failure on purpose:", str(error).split(". ")[0])
if process == 0:  # one writes what people read; w is replicated, so its copy here is the whole
    np.save(result, np.asarray(w))
