"""Make docs/mistakes.md: `python docs/mistakes.py > docs/mistakes.md`.

tests/verify puts the first wrong line of a section into a training step, and
benchmarks/verify_matrix.py every line. `verify` has to find them.
"""

from typing import NamedTuple

from pmapdp.verify.mistakes import MISTAKES, find_address


class WrongLine(NamedTuple):
    """A mistake in a line of tests/verify/program.py, as people write it."""

    wrong: str
    correct: str
    under: tuple[str, ...] = ("pmap", "shard_map", "jit")


class Section(NamedTuple):
    """The page's section on a mistake.

    Attributes:
        symptom: What you notice without `verify`.
        fact: What `verify` says of it, in short.
        unnoticed: Why a training run doesn't show it.
        write: The correction.
        no_mistake_if: When the program is correct as it is, as a clause, if ever.
        lines: Examples.
    """

    symptom: str
    fact: str
    unnoticed: str
    write: str
    no_mistake_if: str = ""
    lines: tuple[WrongLine, ...] = ()


SECTIONS = {
    "no all-reduce": Section(
        symptom="The devices hold different parameters, so the result depends on whose copy you save",
        fact="each device holds the reference's result on its own examples, or only the devices' mean is the reference's value, and other results depend on it",
        unnoticed="Each device then trains a model of its own, and every one of these losses falls as usual.",
        write="Average all gradients in one pytree before the update, over every axis of the mesh that splits the batch.",
        no_mistake_if="each device trains its own model",
        lines=(
            WrongLine(
                "gradients = gradients",
                'gradients = lax.pmean(gradients, "data")',
                ("pmap", "shard_map"),
            ),
            WrongLine(
                'gradients = {**lax.pmean(gradients, "data"), "logits": gradients["logits"]}',
                'gradients = lax.pmean(gradients, "data")',
                ("pmap", "shard_map"),
            ),
        ),
    ),
    "sum for mean": Section(
        symptom="The gradient's norm is N times one device's. SGD jumps about or diverges, and Adam hardly notices",
        fact="the change is N times the reference's, or each example counts N times as much",
        unnoticed="Adam divides the factor out again, so its loss curve looks healthy. SGD takes steps that are N times as long.",
        write="Use `lax.pmean` instead of `lax.psum`, divide by the number of micro-batches, or take one device's learning rate.",
        no_mistake_if="your step divides the loss by a number of devices that it read before it was traced. Then the reference "
        "is N times too small: divide by `lax.axis_size(axis_name)`",
        lines=(
            WrongLine(
                'gradients = lax.psum(gradients, "data")',
                'gradients = lax.pmean(gradients, "data")',
            ),
            WrongLine("rate, decay = N, 0.001", "rate, decay = 1, 0.001"),
        ),
    ),
    "check_vma": Section(
        symptom="The gradient's norm is N times one device's since you ported the step from pmap to shard_map",
        fact="the change is N or N² times the reference's, and the step has a `shard_map` with `check_vma=True`",
        unnoticed="Under pmap and `check_vma=False` the same lines are correct, and JAX says nothing.",
        write='Differentiate `lax.pcast(params, axis_name, to="varying")` and average the gradient: JAX then refuses a step that '
        "forgets to. `check_vma=False` is also correct, but turns that check off.",
        no_mistake_if="the learning rate is multiplied by N on purpose",
        lines=(WrongLine("check_vma=True", "check_vma=False", ("shard_map",)),),
    ),
    "averaged twice": Section(
        symptom="The gradient's norm is 1/N of one device's, and under SGD the loss falls more slowly",
        fact="the change is 1/N of the reference's, or each example counts 1/N as much",
        unnoticed="Adam also divides this factor out, and SGD only trains more slowly.",
        write="Remove one of the two divisions.",
        no_mistake_if="the learning rate is divided by N on purpose",
        lines=(
            WrongLine(
                'gradients = jax.tree.map(lambda g: g / N, lax.pmean(gradients, "data"))',
                'gradients = lax.pmean(gradients, "data")',
            ),
        ),
    ),
    "mean of means": Section(
        symptom="The loss or the update is slightly off, most of all in a padded batch",
        fact="a value is the mean of the reference's results on each device's examples, and other results depend on it",
        unnoticed="As long as all devices hold equally many valid examples, a mean of their means is the mean over the batch. So a "
        "missing count shows only in padded or uneven batches. Local clipping and local batch norm change every update.",
        write="Divide sums: `lax.psum(gradient_sums, axis_name) / lax.psum(count, axis_name)`. Average before you clip. Give batch "
        "norm the global mean and mean of squares (Flax: `axis_name`).",
        no_mistake_if="clipping, batch norm or a contrastive loss is local on purpose",
        lines=(
            WrongLine(
                "count = weight.sum()",
                'count = lax.pmean(weight.sum(), "data")',
            ),
            WrongLine(
                'gradients = lax.pmean(clip(gradients), "data")',
                'gradients = lax.pmean(gradients, "data")',
            ),
            WrongLine(
                "mean, square = moments(h)",
                'mean, square = lax.pmean(moments(h), "data")',
            ),
        ),
    ),
    "local statistics": Section(
        symptom="The training loss is as on one device, and the test loss isn't",
        fact="a value is the result on one device's examples, or the mean of such results, and nothing else depends on it",
        unnoticed="Training normalizes with the statistics of the batch at hand, so the running ones matter only in evaluation.",
        write="Average the mean and the mean of squares (Flax: `axis_name`), and take the variance from them. Add counts up.",
        no_mistake_if="the values are environments, an accumulator that is averaged later, or statistics that are local on purpose",
        lines=(
            WrongLine(
                "mean, square = moments(h)",
                'mean, square = lax.pmean(moments(h), "data")',
            ),
            WrongLine(
                'mean, square = lax.pmean(h.mean(0), "data"), lax.pmean(h.var(0), "data") + lax.pmean(h.mean(0), "data") ** 2',
                'mean, square = lax.pmean(moments(h), "data")',
            ),
        ),
    ),
    "same mask": Section(
        symptom="Eight devices equal one without dropout, but not with it",
        fact="if every device gets the same examples, all draw the same random numbers",
        unnoticed="Each mask is as random as it should be, but the batch `[B, ...]` gets only B/N different ones.",
        write="Fold each example's index in the global batch into the key (`jax.random.fold_in`).",
        no_mistake_if="all devices share their noise, as in some reinforcement learning",
        lines=(
            WrongLine("index = jnp.arange(b)", "index = device * b + jnp.arange(b)"),
        ),
    ),
    "key stands still": Section(
        symptom="Dropout or augmentation has hardly any effect",
        fact="the second update draws the random numbers of the first again",
        unnoticed="One mask looks as random as any other. You'd have to compare the masks of two updates to see that they're the same.",
        write="Take `jax.random.fold_in(key, state.step)`, or return the new key.",
        no_mistake_if="the random numbers are fixed, as in a random projection",
        lines=(
            WrongLine(
                "key = key[0]", 'key = jax.random.fold_in(key[0], state["step"])'
            ),
            WrongLine(
                'new["key"], key = state["key"], state["key"]',
                'new["key"], key = jax.random.split(state["key"])',
            ),
        ),
    ),
    "dropped": Section(
        symptom="An epoch counts fewer examples than the data set has",
        fact="some examples have no influence",
        unnoticed="All other examples train as they should.",
        write="Pad an uneven batch with examples of weight 0, and drop none.",
        no_mistake_if="these examples are padding. Give them the weight 0 in the reference as well",
        lines=(
            WrongLine(
                'weight = batch["weight"].at[-1].multiply(device < N - 1)',
                'weight = batch["weight"]',
            ),
        ),
    ),
    "counted unequally": Section(
        symptom="An epoch counts more examples than the data set has",
        fact="some examples count more than others",
        unnoticed="The loss still falls, for a data set with other weights than you meant.",
        write="If you repeat examples to fill up a batch, give the repeated ones the weight 0.",
        no_mistake_if="you weight examples on purpose, and the reference doesn't",
        lines=(
            WrongLine(
                'weight = batch["weight"].at[1].multiply(1 + (device == 0))',
                'weight = batch["weight"]',
            ),
            WrongLine(
                'weight = batch["weight"] * (1 + 0.5 * (device == 0))',
                'weight = batch["weight"]',
            ),
        ),
    ),
    "drift": Section(
        symptom="The devices start with equal parameters, and move apart slowly",
        fact="the devices hold different values, which aren't the results on their own examples",
        unnoticed="Most programs save and evaluate only device 0's copy, and nobody looks at the others.",
        write="Compute the update only from averaged values.",
        no_mistake_if="each device has its own key or environments",
        lines=(
            WrongLine(
                "p + rate * u - decay * p + 1e-4 * device",
                "p + rate * u - decay * p",
                ("pmap", "shard_map"),
            ),
        ),
    ),
    "NaN on one device": Section(
        symptom="The loss becomes NaN in an epoch's last, padded batch",
        fact="on the examples of one device alone, the reference is also NaN",
        unnoticed="The all-reduce then spreads the NaN to all devices, so you can't see where it began.",
        write="Divide after summing: `lax.psum(sums, axis_name) / lax.psum(count, axis_name)`.",
    ),
    "one device's metrics": Section(
        symptom="The printed loss depends on the device, or jumps about more than on one",
        fact="a metric differs between devices, or it's the reference's result on one device's examples",
        unnoticed="The training itself is correct. But the number that you look at comes from an eighth of the examples.",
        write="Add up sums and counts with `lax.psum`, and average means over equally many examples with `lax.pmean`.",
        no_mistake_if="the loop averages the devices' metrics",
        lines=(
            WrongLine(
                "total, hits, count = total, hits, weight.sum()",
                'total, hits, count = lax.psum((total, hits, weight.sum()), "data")',
            ),
        ),
    ),
    "scaled metrics": Section(
        symptom="A metric is N or 1/N times what one device prints, and the model is the same",
        fact="a metric is N, N² or 1/N times the reference's value, or the sum of its results on each device's examples",
        unnoticed="The training itself is correct, and so is the curve's shape.",
        write="Take `lax.pmean` for means, `lax.psum` for sums, and `lax.pmax` for maxima.",
        no_mistake_if="the loop divides or multiplies it",
        lines=(
            WrongLine(
                'norm = lax.psum(optax.tree.norm(params), "data")',
                'norm = lax.pmean(optax.tree.norm(params), "data")',
            ),
        ),
    ),
    "every device computes everything": Section(
        symptom="Eight devices take as long as one for the same global batch",
        fact="the busiest device does more than its share of the work",
        unnoticed="All numbers are correct, so no comparison of results finds it.",
        write='Place it with `jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))`, or give `in_shardings` or '
        "`in_specs`.",
        no_mistake_if="the step computes more than the reference, such as a second pass",
        lines=(
            WrongLine(
                "specs = (P(), P(), *[P()] * keys)",
                'specs = (P(), P("data"), *[P()] * keys)',
                ("shard_map",),
            ),
            WrongLine(
                "batch = lax.with_sharding_constraint(batch, NamedSharding(mesh, P()))",
                'batch = lax.with_sharding_constraint(batch, NamedSharding(mesh, P("data")))',
                ("jit",),
            ),
        ),
    ),
}

# The sections in the order of the page, by where you notice the mistake.
PLACES = {
    "loss and gradient": (
        "sum for mean",
        "check_vma",
        "averaged twice",
        "mean of means",
        "NaN on one device",
    ),
    "parameters": ("no all-reduce", "drift"),
    "test result": ("local statistics",),
    "dropout and augmentation": ("same mask", "key stands still"),
    "number of examples": ("dropped", "counted unequally"),
    "printed metrics": ("one device's metrics", "scaled metrics"),
    "time": ("every device computes everything",),
}

HEAD = """# Usual mistakes

Your training is worse on eight devices than on one, and nothing raised an error. First train on one device with the same global
batch. If that run is just as bad, [the larger batch](slower_or_worse.md#my-loss-is-worse-on-eight-devices) is the reason, and
your step isn't. Otherwise look where you noticed something, and follow the link. N is the number of devices.

| where | what you see | look at |
| --- | --- | --- |"""

CHECK = """
If none of these is what you see, begin with the check below, because under Adam many mistakes leave the loss curve as it was. Then
let [`verify`](verify.md) compare your step with one device. Its report links to the sections of this page.

## Do all devices hold the same parameters?

This function returns the largest difference between any two devices' copies of a parameter. Make a few updates, and call it with the
parameters as your step returned them, before anything selects device 0's copy:

```python
import jax
import numpy as np


def largest_spread(params):
    spreads = []
    for array in jax.tree.leaves(params):
        copies = [np.asarray(shard.data) for shard in array.addressable_shards]
        spreads.append(np.ptp(np.stack(copies), axis=0).max())
    return max(spreads)
```

It takes pmap's stacked parameters `[N, ...]` and replicated ones, but none that you split over the devices on purpose. If it returns 0,
all devices hold the same numbers. If not, look at [no all-reduce](#no-all-reduce) first, and then at [drift](#drift).
Unfortunately the devices may also agree on wrong numbers: if you sum gradients that you should average, the result is also 0. That's
why `verify` compares with one device."""

SECTIONS_HEAD = """
## Mistakes of a step

The examples are lines of [a small training step](../tests/verify/program.py). A line with a minus is wrong, and the line with a plus
is its correction. Under jit the compiler adds the all-reduces, so you can't forget one. If the devices are supposed to hold
different values, name these in `per_device`, and take `old_program` as the reference."""

FOOT = """
## Mistakes outside of the step

`verify` calls your step in one process, and places the batch and the key itself. What goes wrong in your loop, before and after the
step, it can't see:

| what you see | what it usually is | look at |
| --- | --- | --- |
| With more processes, an epoch takes as many updates as before | every process reads the whole data set, so all train on the same examples | [several processes](processes.md), [lesson 17](../lessons/17_many_processes.ipynb) |
| The program stands still in the last batch of an epoch | one process has a batch less, and the others wait for it in an all-reduce | [lesson 17](../lessons/17_many_processes.ipynb) |
| The loss jumps after a restart | the checkpoint lacks the optimizer's state, the key or the place in the data | [lesson 14](../lessons/14_survive_a_kill.ipynb) |
| The test result has a few examples too many or too few | evaluation drops the last batch, or counts its padding | [lesson 08](../lessons/08_keep_dropout_and_metrics_exact.ipynb) |
| The numbers are correct, but every update takes too long | an all-reduce runs in a loop, once for each layer or micro-batch | the line "The devices exchange" of `verify`'s report, [no faster](slower_or_worse.md#my-second-gpu-is-no-faster) |"""


def print_section(mistake: str) -> None:
    """Print a section of the page."""
    section = SECTIONS[mistake]
    print(f"\n### {mistake}\n")
    print(f"Usually {MISTAKES[mistake]}. {section.unnoticed}\n")
    print(f"- **`verify` says** that {section.fact}.")
    print(f"- **To correct it:** {section.write}")
    if section.no_mistake_if:
        print(f"- **It's no mistake if** {section.no_mistake_if}.")
    if section.lines:
        examples = [f"- {line.wrong}\n+ {line.correct}\n" for line in section.lines]
        print("\n```diff\n" + "\n".join(examples) + "```")


def main() -> None:
    """Print the page."""
    print(HEAD)
    for place, mistakes in PLACES.items():
        where = f"**{place}**"
        for mistake in mistakes:
            link = f"[{mistake}](#{find_address(mistake)})"
            print(f"| {where} | {SECTIONS[mistake].symptom} | {link} |")
            where = ""  # the next rows have the same place
    print(CHECK)
    print(SECTIONS_HEAD)
    for mistakes in PLACES.values():
        for mistake in mistakes:
            print_section(mistake)
    print(FOOT)


if __name__ == "__main__":
    main()
