import jax
import numpy as np
from jax import make_array_from_single_device_arrays

ASSEMBLED = "jax.make_array_from_single_device_arrays(shape, sharding, shards)"
SORTED = "sorted(gpus, key=lambda gpu: gpu.process_index)"
ANSWER = f"np.array({SORTED}).reshape(-1, per_machine)"
IN_LISTS = "[[g for g in gpus if g.process_index // per_machine == n] for n in range(len(gpus) // per_machine)]"
FIRST_SAYS = "if process == 0:\n        say(value)"
PARTS = "np.split(rows, len(local_devices))"
MESH_ORDER = """jax.make_array_from_single_device_arrays(
        shape,
        sharding,
        [
            jax.device_put(part, device)
            for part, device in zip(parts, sharding.mesh.devices.flat, strict=True)
        ],
    )"""
# From here on, right answers that make the array in other ways.
BY_INDEX = """jax.make_array_from_callback(
        shape,
        sharding,
        lambda index: next(
            part
            for part, device in zip(parts, local_devices, strict=True)
            if sharding.devices_indices_map(shape)[device] == index
        ),
    )"""
REORDERED = """jax.make_array_from_process_local_data(
        sharding,
        np.concatenate(
            [
                parts[local_devices.index(device)]
                for device in sharding.mesh.devices.flat
                if device in local_devices
            ]
        ),
        shape,
    )"""


def place_shards(rows, local_devices):
    """The shards of this process."""
    parts = zip(np.split(rows, len(local_devices)), local_devices, strict=True)
    return [jax.device_put(part, device) for part, device in parts]


def by_imported_name(sharding, shape, rows, local_devices):
    shards = place_shards(rows, local_devices)
    return make_array_from_single_device_arrays(shape, sharding, shards)


def of_half_the_shape(sharding, shape, rows, local_devices):
    shards = place_shards(rows, local_devices)
    return make_array_from_single_device_arrays(rows.shape, sharding, shards)


BY_MACHINE = f"np.array({SORTED}).reshape(per_machine, -1)"

WRONG = {
    "assemble": [
        ("return a jax.Array", ASSEMBLED, "rows"),
        ("its sharding is", ASSEMBLED, "jax.device_put(rows, local_devices[0])"),
        ("in the order of local_devices", ASSEMBLED, "jax.device_put(rows, sharding)"),
        (
            "in the order of local_devices",
            ASSEMBLED,
            "jax.make_array_from_callback(shape, sharding, lambda index: rows[index])",
        ),
        (
            "in the order of local_devices",
            ASSEMBLED,
            "jax.make_array_from_process_local_data(sharding, rows, shape)",
        ),
        ("in the order of local_devices", PARTS, f"{PARTS}[::-1]"),
        ("yours gave it [0. 3. 6.]", ASSEMBLED, "jax.device_put(rows, sharding)"),
        ("with two processes the global shape is (16, 3)", of_half_the_shape),
        (
            "with two processes the global shape is (16, 3)",
            "shape, sharding",
            "rows.shape, sharding",
        ),
        ("in the order of local_devices", ASSEMBLED, MESH_ORDER),
        (
            "in the order of local_devices",
            "zip(parts, local_devices",
            "zip(parts, sorted(local_devices, key=lambda device: device.id)",
        ),
        (
            "the global shape",
            ASSEMBLED,
            "jax.device_put(rows[: len(local_devices)], sharding)",
        ),
        (
            "only half of the rows",
            ASSEMBLED,
            f"{ASSEMBLED} if rows.shape == shape else rows",
        ),
    ],
    "group_by_machine": [
        ("the shape is [machines, per_machine]", ANSWER, "np.array(gpus)"),
        ("must stay inside a machine", "process_index", "id"),
        ("must stay inside a machine", ANSWER, f"{BY_MACHINE}.T"),
        ("the shape is [machines, per_machine]", ANSWER, BY_MACHINE),
        ("must stay inside a machine", SORTED, "gpus"),
        (
            "each GPU comes once",
            ANSWER,
            f"np.array([{SORTED}[:per_machine]] * (len(gpus) // per_machine))",
        ),
    ],
    "fixed_log": [
        ("end it with a return statement", "return value", "pass"),
        (
            "wait for the others in vain",
            "value = mean_loss()",
            "value = 0.25",
            "say(value)",
            "say(mean_loss())",
        ),
        ("process 0 alone", "if process == 0:", "if True:"),
        ("computed the loss 2 times", "say(value)", "say(mean_loss())"),
        (
            "on every process",
            "return value",
            "return value if process == 0 else float('nan')",
        ),
        ("process 0 alone", "process == 0", "process == 1"),
    ],
}

RIGHT = {
    "assemble": [
        (PARTS, "rows.reshape(len(local_devices), -1, *rows.shape[1:])"),
        by_imported_name,
        (ASSEMBLED, BY_INDEX),
        (ASSEMBLED, REORDERED),
        (ASSEMBLED, REORDERED.replace("        shape,\n", "")),
        (
            ASSEMBLED,
            "jax.make_array_from_single_device_arrays(sharding=sharding, shape=shape, arrays=shards)",
        ),
    ],
    "group_by_machine": [
        (ANSWER, IN_LISTS),
        ("gpu.process_index)", "(gpu.process_index // per_machine, gpu.id))"),
    ],
    "fixed_log": [
        (FIRST_SAYS, "{0: say}.get(process, lambda _: None)(value)"),
        (FIRST_SAYS, "if not process:\n        say(value)"),
    ],
}
