"""What is trained: numbers that a prediction needs of a model and its optimizer."""

from dataclasses import dataclass

# Of optimizer state beside each parameter, in numbers: momentum keeps one, Adam two (optax; Kingma and Ba, 2015).
OPTIMIZER_SLOTS = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


@dataclass(frozen=True)
class Workload:
    """A model, as training sees it. Parameters, gradients and optimizer state are float32.

    Attributes:
        name: of the model.
        parameters: number of trainable scalars.
        flops: floating-point operations for one example, forward and backward.
        bytes: read and written in device memory for one example; 0 where it is not known and taken to be hidden behind
            the operations.
        fixed_bytes: the same, for an update whatever the batch.
        source: of the figures.
    """

    name: str
    parameters: int
    flops: float
    bytes: float = 0.0
    fixed_bytes: float = 0.0
    source: str = ""

    def update_bytes(self, optimizer: str) -> float:
        """Bytes that the optimizer's update moves: the gradient is read, parameter and state are read and written."""
        return 4 * self.parameters * (1 + 2 + 2 * OPTIMIZER_SLOTS[optimizer])

    def state_bytes(self, optimizer: str) -> float:
        """Bytes of the optimizer's state."""
        return 4 * self.parameters * OPTIMIZER_SLOTS[optimizer]


# A multiply-add counts as two operations; the backward pass takes twice the forward's.
PUBLISHED = {
    "resnet-50": Workload(
        "resnet-50",
        parameters=25_557_032,
        flops=3 * 2 * 4.09e9,
        source="He et al., arXiv:1512.03385, 2015; parameters and 4.09e9 multiply-adds at 224 x 224: torchvision's "
        "documentation of resnet50",
    ),
    "gpt-2": Workload(
        "gpt-2",
        parameters=124_439_808,
        flops=6 * 124_439_808 * 1024,
        source="Radford et al., 2019; an example is 1,024 tokens of 6 operations a parameter: Kaplan et al., "
        "arXiv:2001.08361, 2020",
    ),
}


def from_counts(name: str, counts: dict) -> Workload:
    """One of our models, from two compiled steps of different batch sizes: what grows between them is an example's.

    Args:
        name: of the model.
        counts: what `worker.count` found.
    """
    small, large = counts["batches"]
    flops, moved = ((counts[key][1] - counts[key][0]) / (large - small) for key in ("flops", "bytes"))
    return Workload(
        name,
        parameters=counts["parameters"],
        flops=flops,
        bytes=moved,
        # The compiled step has the update in it, which a prediction counts by itself.
        fixed_bytes=max(0.0, counts["bytes"][0] - small * moved - counts["update_bytes"]),
        source="XLA's cost analysis of the compiled step, on the CPU",
    )
