"""Who does what, and what is compared with what."""

from dataclasses import dataclass, replace

STRATEGIES = ("pmap", "jit", "shard_map")


@dataclass(frozen=True)
class Run:
    """One command that trains on MNIST.

    Attributes:
        who: pmapdp, bare (`bare.py`), or a script of `peers/`.
        model: cnn or convnet.
        strategy: pmap, jit, shard_map or single; empty for a peer.
        devices: N.
        global_batch: B, examples per update over all devices.
    """

    who: str
    model: str
    strategy: str
    devices: int
    global_batch: int

    @property
    def name(self) -> str:
        """What it is called in results.json."""
        fields = (self.who, self.strategy, self.model, self.devices, self.global_batch)
        return " ".join(map(str, filter(None, fields)))

    @property
    def examples(self) -> int:
        """Examples of one epoch: enough for a second or more on a CPU."""
        return {"cnn": 25_600, "convnet": 6_400}[self.model]


@dataclass(frozen=True)
class Comparison:
    """Two runs, and the least ratio of their examples/s.

    Attributes:
        work: what both do.
        ours: a run of pmapdp.
        other: what it is compared with.
        against: the other in words.
        target: least examples/s of ours over the other's.
    """

    work: str
    ours: Run
    other: Run
    against: str
    target: float


def comparisons(peers: bool) -> list[Comparison]:
    """All of them; those with other frameworks where `peers` says so."""
    works = [
        # words, model, strategies, devices, global batch, (a script of peers/, its name, the target)
        ("CNN, 64", "cnn", ("single",), 1, 64, [("mirrored_strategy", 1.1), ("pytorch_ddp", 2.0)]),
        ("CNN, 512", "cnn", STRATEGIES, 8, 512, [("mirrored_strategy", 2.2), ("pytorch_ddp", 2.2)]),
        ("convnet, 64", "convnet", ("single",), 1, 64, [("keras_jax", 1.0)]),
        ("convnet, 64", "convnet", STRATEGIES, 8, 64, [("keras_jax", 1.1)]),
    ]
    names = {"mirrored_strategy": "MirroredStrategy", "pytorch_ddp": "PyTorch DDP", "keras_jax": "Keras on JAX"}
    found = []
    for work, model, strategies, devices, batch, others in works:
        for strategy in strategies:
            ours = Run("pmapdp", model, strategy, devices, batch)
            found.append(Comparison(work, ours, replace(ours, who="bare"), "bare loop", 0.95))
        for who, target in others if peers else ():
            peer = Run(who, model, "", devices, batch)
            for strategy in strategies:
                ours = Run("pmapdp", model, strategy, devices, batch)
                found.append(Comparison(work, ours, peer, names[who], target))
    return found
