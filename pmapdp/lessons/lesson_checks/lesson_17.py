"""Checks of lesson 17's exercises: eight devices of one process stand for several processes."""

import inspect
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.lessons.checks import require


def assemble(answer):
    """Accept an array whose rows are on the devices that they were given for."""
    check_own_rows(answer)
    check_half_of_the_rows(answer)


def check_own_rows(answer):
    """Check an array of which this process has all rows, in an order of its own."""
    devices = jax.devices()
    # Two orders, as on TPUs, and neither is the order of the ids.
    mesh = Mesh(np.array([devices[n] for n in (3, 0, 2, 1)]), ("data",))
    local_devices = [devices[n] for n in (1, 3, 0, 2)]
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    rows = np.arange(36, dtype=np.float32).reshape(12, 3)
    rows_by_device = dict(zip(local_devices, np.split(rows, 4), strict=True))
    array = answer(sharding, rows.shape, rows, local_devices)
    require(isinstance(array, jax.Array), "return a jax.Array")
    require(
        array.shape == rows.shape,
        f"the global shape is {rows.shape}, yours is {array.shape}",
    )
    require(
        array.sharding.is_equivalent_to(sharding, 2),
        f"its sharding is {array.sharding}, asked for was {sharding}",
    )
    for shard in array.addressable_shards:
        wanted = rows_by_device[shard.device]
        require(
            np.array_equal(shard.data, wanted),
            f"in the first column, {shard.device} should have {wanted[:, 0]}, and yours "
            f"gave it {np.asarray(shard.data)[:, 0]}: rows come in the order of "
            "local_devices, not in the order of the global array",
        )


def check_half_of_the_rows(answer):
    """Check what an answer does as process 1 of two, which has half of the rows.

    JAX can't make such an array in one process, so its last call is only recorded.
    """
    devices = jax.devices()[:8]
    local_devices = [devices[n] for n in (6, 4, 7, 5)]
    mesh = Mesh(np.array(devices), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    shape = (16, 3)
    rows = np.arange(24, dtype=np.float32).reshape(8, 3)
    calls = []

    def record(shape, sharding, arrays, **options):
        calls.append((tuple(shape), arrays))
        return calls

    def record_callback(shape, sharding, callback, **options):
        indices = sharding.devices_indices_map(tuple(shape))
        parts = [callback(indices[device]) for device in local_devices]
        shards = list(map(jax.device_put, parts, local_devices))
        return record(shape, sharding, shards)

    def record_local(sharding, local_data, global_shape=None):
        parts = np.split(local_data, len(local_devices))
        shards = list(map(jax.device_put, parts, devices[4:]))  # in the mesh's order
        return record(global_shape or shape, sharding, shards)

    records = {
        "make_array_from_single_device_arrays": record,
        "make_array_from_callback": record_callback,
        "make_array_from_process_local_data": record_local,
    }
    # The learner may have imported a function by its name.
    names = getattr(inspect.unwrap(answer), "__globals__", {})
    imported = {}
    for name, value in names.items():
        for function in records:
            if value is getattr(jax, function):
                imported[name] = records[function]
    originals = {name: names[name] for name in imported}
    names.update(imported)
    try:
        with mock.patch.multiple(jax, **records):
            array = answer(sharding, shape, rows, local_devices)
    finally:
        names.update(originals)
    require(
        array is calls and len(calls) == 1,
        "with two processes, this one has only half of the rows: "
        "return jax.make_array_from_single_device_arrays(...) of this process's shards",
    )
    ((found_shape, shards),) = calls
    require(
        found_shape == shape,
        f"with two processes the global shape is {shape}, and this process has "
        f"{rows.shape} of it: pass `shape`, yours is {found_shape}",
    )
    found = {device: shard for shard in shards for device in shard.devices()}
    require(
        len(shards) == len(local_devices) and set(found) == set(local_devices),
        f"with two processes this one must place {len(local_devices)} shards, one on "
        "each of its local_devices",
    )
    for device, wanted in zip(local_devices, np.split(rows, 4), strict=True):
        require(
            np.array_equal(found[device], wanted),
            f"with two processes, {device} should have {wanted[:, 0]} in the first "
            f"column, and yours gave it {np.asarray(found[device])[:, 0]}",
        )


def group_by_machine(answer):
    """Accept rows that hold the GPUs of one machine, with each GPU once."""
    for machines, per_machine in ((2, 4), (4, 2), (3, 2)):
        check_groups(answer, machines, per_machine)


def check_groups(answer, machines, per_machine):
    """Check the groups of one cluster."""
    # Neighbours in the list and in the numbers are of different machines, as on some
    # clusters.
    numbers = np.arange(machines * per_machine)
    processes = numbers.reshape(machines, per_machine).T.ravel()
    gpus = [
        SimpleNamespace(process_index=int(process), id=number)
        for number, process in enumerate(processes)
    ]
    gpus = gpus[1:] + gpus[:1]  # in no order at all
    groups = np.asarray(answer(list(gpus), per_machine), dtype=object)  # or lists
    shape = (machines, per_machine)
    require(
        groups.shape == shape,
        f"the shape is [machines, per_machine], here {shape}; yours is {groups.shape}",
    )
    require(
        {id(gpu) for gpu in groups.flat} == {id(gpu) for gpu in gpus},
        "each GPU comes once",
    )
    for row in groups:
        machines_of_row = {gpu.process_index // per_machine for gpu in row}
        require(
            len(machines_of_row) == 1,
            f"a row has GPUs of the machines {sorted(machines_of_row)}: the second axis "
            "must stay inside a machine",
        )


def fixed_log(answer):
    """Accept a log in which every process computes, and one says."""
    for process in (0, 1, 2):
        computed = []
        said = []

        def mean_loss(computed=computed):
            computed.append(True)
            return 0.25

        returned = answer(process, mean_loss, said.append)
        require(
            len(computed) == 1,
            f"process {process} computed the loss {len(computed)} times: all must do "
            "so once, or some wait for the others in vain",
        )
        require(
            said == [0.25] * (process == 0),
            f"process {process} said {said}: process 0 alone says the loss",
        )
        require(returned == 0.25, "return the loss on every process")
