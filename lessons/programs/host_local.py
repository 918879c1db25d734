"""Two processes call pmap and shard_map on 50 small arrays. Lesson 12: `python host_local.py COORDINATOR PROCESS`."""

import os
import sys
import time

os.environ["NPROC"] = "8"  # threads enough for simulated devices before jax 0.12 (lesson 00)
import jax
import numpy as np
from jax import P
from jax.sharding import Mesh, NamedSharding

jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
mesh = Mesh(np.array(jax.devices()), ("batch",))
split = NamedSharding(mesh, P("batch"))


def double(arrays):
    """No collective, so that the time is that of the call."""
    return [2 * x for x in arrays]


mine = [np.ones((2, 4), np.float32)] * 50  # the rows of this process' devices
of_all = [jax.make_array_from_process_local_data(split, x) for x in mine]
by_pmap = jax.pmap(double)
by_shard_map = jax.jit(jax.shard_map(double, mesh=mesh, in_specs=P("batch"), out_specs=P("batch")))
for name, function, arrays in (("pmap", by_pmap, by_pmap(mine)), ("shard_map", by_shard_map, of_all)):
    times = []
    for _ in range(30):
        clock = time.perf_counter()
        result = jax.block_until_ready(function(arrays))
        times.append(time.perf_counter() - clock)
    shape, local = result[0].shape, result[0].is_fully_addressable
    print(f"{name:9s} {shape}, of this process alone: {local!s:5}, {1e6 * min(times):6.0f} us a call", file=sys.stderr)
