"""The results of a comparison, as table, page and JSON file get them."""

from dataclasses import dataclass, field

from pmapdp.collectives import Instruction
from pmapdp.config import Config


@dataclass(frozen=True)
class Arrays:
    """A tree of arrays on devices.

    Attributes:
        bytes: what one device holds of all of them.
        shape: the largest array's.
        split: the devices hold different parts.
    """

    bytes: int
    shape: list[int]
    split: bool


@dataclass(frozen=True)
class Times:
    """The times of an update in ms: the median and the quartiles."""

    low: float
    median: float
    high: float


@dataclass(kw_only=True)
class Measurement:
    """A measurement tells what a strategy or a program did on some devices.

    Attributes:
        strategy: The strategy, or the program as `old.py:program`.
        label: The same without folders.
        name: The label with the number of devices.
        devices: The number of devices.
        global_batch_size: The number of examples in an update.
        simulated: True if several devices share a CPU.
        machine: The devices and versions.
        step_ms: The times of an update, in milliseconds.
        collectives: The collectives of the compiled update, the largest first.
        memory: Bytes on a device by use, as the compiler plans them. Results that reuse
            donated memory take none.
        holds: The arrays on the devices by their role, such as `batch`.
        sees: The shape of the inputs in your function. Empty for a program.
        losses: The losses of all updates. Empty for a program.
        gradient_sums: One weight's gradient sum on each device in the first update.
            Empty for a program.
        verdict: The verdict of `verify`. Empty for a strategy.
        report: The report of `verify`. Empty for a strategy.
        largest_difference: The largest difference in any element from the parameters of
            a single device, or from the state of the first program after one update.
            None: they don't start from one state.
        dtype: The type in which this difference was computed.
    """

    strategy: str
    label: str
    name: str
    devices: int
    global_batch_size: int
    simulated: bool
    machine: str
    step_ms: Times
    collectives: list[Instruction]
    memory: dict[str, int]
    holds: dict[str, Arrays]
    sees: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gradient_sums: list[float] = field(default_factory=list)
    verdict: str = ""
    report: str = ""
    largest_difference: float | None = None
    dtype: str = "float32"


@dataclass(frozen=True)
class Line:
    """A line of a source. Its number in the file is None if it only separates parts."""

    number: int | None
    text: str


@dataclass(frozen=True)
class Code:
    """The code of all columns.

    Attributes:
        sections: The parts that the page shows, by title, with the lines of each
            column.
        sources: The whole code of each of your programs. Empty for strategies.
    """

    sections: dict[str, dict[str, list[str]]]
    sources: dict[str, list[Line]]


@dataclass(frozen=True)
class Comparison:
    """A comparison.

    Attributes:
        config: the training's, or None if your programs are compared.
        columns: the strategies or programs, the first of which is the reference.
        runs: the measurements, those on the most devices first, after a single device.
        wrong: the two wrong strategies'.
    """

    config: Config | None
    columns: list[str]
    runs: list[Measurement]
    wrong: list[Measurement]
    code: Code
