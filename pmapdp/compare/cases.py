"""The cases in which the ways part: which programs of `parting.py` belong together, and what each shows."""

from typing import NamedTuple

from pmapdp.compare.parting import (
    Program,
    accumulation,
    averaged,
    averaged_in_each,
    averaged_once,
    batch_norm,
    clipped_after_the_average,
    clipped_before_the_average,
    clipping,
    dropout,
    dropout_by_example,
    folded_key,
    key_of_the_example,
    local_moments,
    mean_of_means,
    metric_not_averaged,
    one_key,
    plain,
    ragged_batch,
    sum_over_count,
    synchronized_moments,
)


class Case(NamedTuple):
    """Something that a step does: on one device and under jit, and under pmap and shard_map; what each shows."""

    name: str
    one_device: Program
    under_jit: str
    mapped: dict[Program, str]
    check_vma: bool = False  # of shard_map


CASES = (
    Case(
        "a plain step", plain, "A mean over the batch is the global mean.",
        {averaged: "The mean over devices of means over equally many examples is the global mean."},
    ),
    Case(
        "a plain step, with check_vma=True", plain, "jit has no such check.",
        {averaged: "With shard_map's default the gradient is already summed over devices: N times too long."},
        check_vma=True,
    ),
    Case(
        "batch norm", batch_norm, "mean(0) is over the global batch: there is nothing to synchronize.",
        {
            local_moments: "Each device uses its own moments: the result depends on the number of devices.",
            synchronized_moments: "Averaged moments are those of the global batch, at one more all-reduce each way.",
        },
    ),
    Case(
        "dropout, one key", dropout, "One mask for the global batch, however it is split.",
        {
            one_key: "Every device draws the same mask for its examples: masks repeat.",
            folded_key: "The masks are independent, and depend on the number of devices.",
        },
    ),
    Case(
        "dropout, a key for each example", dropout_by_example, "The masks are the same on any number of devices.",
        {key_of_the_example: "The mask belongs to the example, wherever it is computed."},
    ),
    Case(
        "gradient accumulation", accumulation,
        "reshape(2, -1) leaves each half on half of the devices, so the compiler moves examples.",
        {
            averaged_in_each: "Right; the devices exchange every gradient twice.",
            averaged_once: "Right; the devices exchange every gradient once, and no example moves.",
        },
    ),
    Case(
        "clipping", clipping, "The gradient that is clipped is that of the global batch.",
        {
            clipped_before_the_average: "Each device shortens its own gradient; the mean has another direction.",
            clipped_after_the_average: "The gradient of the global batch is clipped.",
        },
    ),
    Case(
        "a ragged batch", ragged_batch, "Both sums are over the global batch.",
        {
            mean_of_means: "A device with one example counts as much as one with six.",
            sum_over_count: "The sum over the global batch, divided by its count.",
        },
    ),
    Case(
        "a metric that is not averaged", plain, "The loss is over the global batch.",
        {metric_not_averaged: "Each device has the loss of its own examples; out_axes=None keeps the first's."},
    ),
)  # fmt: skip
