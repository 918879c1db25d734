"""Who does what, and what is compared with what."""

from dataclasses import dataclass, replace

STRATEGIES = ("pmap", "jit", "shard_map")


@dataclass(frozen=True)
class Run:
    """One command that trains on MNIST.

    Attributes:
        who: pmapdp, bare (`bare.py`), plain (the same without pmapdp/cpu), or a script of `peers/`.
        model: cnn, convnet or mlp.
        strategy: pmap, jit, shard_map or single; empty for a peer.
        devices: N.
        global_batch: B, examples per update over all devices.
        split: what of ours `--shard-state` splits over the devices; empty for nothing.
    """

    who: str
    model: str
    strategy: str
    devices: int
    global_batch: int
    split: str = ""

    @property
    def name(self) -> str:
        """What stands in results.json."""
        fields = (self.who, self.strategy, self.model, self.devices, self.global_batch, self.split)
        return " ".join(map(str, filter(None, fields)))

    @property
    def examples(self) -> int:
        """Examples of one epoch: enough for some seconds."""
        return {"cnn": 25_600, "convnet": 6_400, "mlp": 25_600}[self.model]


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


def cnn(strategy: str, devices: int, global_batch: int) -> Run:
    """The network of the MirroredStrategy tutorial."""
    return Run("pmapdp", "cnn", strategy, devices, global_batch)


def comparisons(peers: bool) -> list[Comparison]:
    """All of them; those with other frameworks where `peers` says so."""
    bare_limit = 1 / 1.05  # a step may take at most 1.05 times as long
    found = [
        Comparison(
            "MLP, batch 128",
            Run("pmapdp", "mlp", "single", 1, 128),
            Run("bare", "mlp", "single", 1, 128),
            "bare jit loop",
            bare_limit,
        )
    ]
    for strategy in STRATEGIES:
        other = Run("bare", "cnn", strategy, 8, 512)
        found.append(Comparison("CNN, 64 a device", cnn(strategy, 8, 512), other, f"bare {strategy} loop", bare_limit))
    for strategy in STRATEGIES:
        other = Run("plain", "cnn", strategy, 8, 512)
        found.append(Comparison("CNN, 64 a device", cnn(strategy, 8, 512), other, "plain Flax loop", 2.0))
    for strategy in STRATEGIES:
        other = cnn("single", 1, 512)
        found.append(Comparison("CNN, 512 in all", cnn(strategy, 8, 512), other, "1 device", 1.0))
    for strategy in ("pmap", "shard_map"):  # under jit the compiler exchanges array by array
        ours = replace(cnn(strategy, 8, 512), split="optimizer")
        found.append(Comparison("CNN, 512 in all, optimizer split", ours, cnn("single", 1, 512), "1 device", 1.0))
    if not peers:
        return found
    for devices, names in ((1, ("single",)), (2, STRATEGIES), (8, STRATEGIES)):
        tensorflow = Run("mirrored_strategy", "cnn", "", devices, 64 * devices)
        pytorch = Run("pytorch_ddp", "cnn", "", devices, 64 * devices)
        for strategy in names:
            ours = cnn(strategy, devices, 64 * devices)
            target = {1: 1.5, 2: 1.5, 8: 3.0}[devices]
            found.append(Comparison("CNN, 64 a device", ours, tensorflow, "MirroredStrategy", target))
            if devices != 2:
                target = {1: 2.5, 8: 3.0}[devices]
                found.append(Comparison("CNN, 64 a device", ours, pytorch, "PyTorch DDP", target))
    for devices, names in ((1, ("single",)), (8, STRATEGIES)):
        keras = Run("keras_jax", "convnet", "", devices, 64)
        for strategy in names:
            ours = Run("pmapdp", "convnet", strategy, devices, 64)
            found.append(Comparison("batch-norm convnet, 64 in all", ours, keras, "Keras on JAX", 2.5))
    return found
