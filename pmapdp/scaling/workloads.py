"""What is trained: numbers that a prediction needs of a model."""

from dataclasses import dataclass


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

    def update_bytes(self, slots: int) -> float:
        """Bytes that the update moves: the gradient is read, the parameter and its `slots` numbers of optimizer state
        are read and written."""
        return 4 * self.parameters * (1 + 2 + 2 * slots)

    def state_bytes(self, slots: int) -> float:
        """Bytes of the optimizer's state."""
        return 4 * self.parameters * slots


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
