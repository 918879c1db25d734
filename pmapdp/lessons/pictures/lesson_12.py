"""Pictures of lesson 12."""

import jax
import matplotlib.pyplot as plt
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.lessons import drawing

# name: (shapes of a kernel and of the inputs, what runs)
PROGRAMS = {
    "old pmap": (
        "[8, 64, 32], split",
        "[8, 16, 64], split",
        "once per device, with pmean",
    ),
    "shard_map": (
        "[64, 32], replicated",
        "[128, 64], split",
        "once per device, with pmean",
    ),
    "jit": ("[64, 32], replicated", "[128, 64], split", "once, for the global batch"),
}


@drawing.picture
def before_and_after() -> None:
    """Under the old pmap a kernel is [8, 64, 32], a slice on each device; under shard_map and jit it is [64, 32], whole on every device. The inputs are always split. The step runs once per device, and under jit once for the global batch."""
    axes = drawing.canvas(31.5, 19.6, inches=8)
    mesh = Mesh(np.array(jax.devices()[:8]), ("batch",))
    for x, text in (
        (5.2, "state: a kernel"),
        (14, "batch: inputs"),
        (22.8, "the step runs"),
    ):
        axes.text(x, 0.5, text, weight="bold")
    for row, (name, texts) in enumerate(PROGRAMS.items()):
        top, of_kernel = (
            2 + 6.1 * row,
            PartitionSpec("batch" if name == "old pmap" else None),
        )
        axes.text(0, top + 2.2, name, weight="bold", va="center")
        for x, text in zip((5.2, 14, 22.8), texts, strict=True):
            axes.text(x, top - 0.3, text, fontsize=9)
        for x, spec in ((5.2, of_kernel), (14, PartitionSpec("batch"))):
            drawing.shards(axes, (x, top, 6.6, 4.4), (8, 8), NamedSharding(mesh, spec))
        if name == "jit":
            drawing.box(axes, 22.8, top, "step", width=7.7, height=4.3)
        else:
            drawing.device_row(
                axes, 22.8, top, "01234567", step=0.97, width=0.9, height=4.3, size=8
            )


@drawing.picture
def loss_curves(losses: dict[str, list[float]]) -> None:
    """Loss over an epoch: the curve of shard_map lies on the old pmap program's, and the curve of jit is near them."""
    looks = {"lw": 6, "alpha": 0.4}, {}, {"color": drawing.ACCENT, "ls": "--", "lw": 2}
    for (name, curve), look in zip(losses.items(), looks, strict=True):
        plt.plot(
            range(1, len(curve) + 1), curve, label=name, **{"color": drawing.INK} | look
        )
    plt.gca().set(xlabel="update", ylabel="loss")
    plt.legend()
