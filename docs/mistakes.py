"""Make docs/mistakes.md: `python docs/mistakes.py > docs/mistakes.md`.

tests/verify puts the first wrong line of a section into a training step, and
benchmarks/verify_matrix.py every line. `verify` has to find them.
"""

from typing import NamedTuple

from pmapdp.verify.mistakes import MISTAKES, find_address


class WrongLine(NamedTuple):
    """A mistake in a line of tests/verify/program.py.

    Attributes:
        wrong: The line with the mistake.
        correct: The line as it should be.
        under: The strategies under which it's a mistake.
        is_shown: False if people write it otherwise, so that the page leaves it out.
    """

    wrong: str
    correct: str
    under: tuple[str, ...] = ("pmap", "shard_map", "jit")
    is_shown: bool = True


class Section(NamedTuple):
    """The page's section on a mistake.

    Attributes:
        symptom: What you notice without `verify`, which the first table says.
        unnoticed: Why a training run hardly shows it, if the symptom doesn't say so.
        write: The correction.
        intended_if: When the program is correct as it is, as a clause, if ever.
        lines: Examples.
    """

    symptom: str
    write: str
    unnoticed: str = ""
    intended_if: str = ""
    lines: tuple[WrongLine, ...] = ()


SECTIONS = {
    "no all-reduce": Section(
        symptom="The devices hold different parameters, so the result depends on whose copy you save",
        unnoticed="Each device trains a model of its own, whose loss falls as usual.",
        write="Average all gradients in one pytree before the update, over every axis of the mesh that splits the batch.",
        intended_if="each device trains its own model",
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
        symptom="The gradient's norm is N times too large. SGD jumps about or diverges, and Adam hardly notices",
        unnoticed="Adam cancels the factor N.",
        write="Use `lax.pmean` instead of `lax.psum`, divide by the number of micro-batches, or take one device's learning rate.",
        intended_if="your step sums losses that it divided by `jax.device_count()`. The reference, on one device, divides by N as "
        "well, so it's N times too small: divide by `lax.axis_size(axis_name)`",
        lines=(
            WrongLine(
                'gradients = lax.psum(gradients, "data")',
                'gradients = lax.pmean(gradients, "data")',
            ),
            WrongLine(
                "rate, decay = N, 0.001", "rate, decay = 1, 0.001", is_shown=False
            ),
        ),
    ),
    "check_vma": Section(
        symptom="After porting from pmap to shard_map, the gradient's norm is N times too large",
        unnoticed="Under pmap and `check_vma=False` the same lines are correct, and JAX says nothing.",
        write='Differentiate `lax.pcast(params, axis_name, to="varying")` and average the gradient: JAX then refuses a step that '
        "forgets to. `check_vma=False` is also correct, but turns that check off.",
        intended_if="you multiplied the learning rate by N",
        lines=(
            WrongLine(
                "check_vma=True", "check_vma=False", ("shard_map",), is_shown=False
            ),
        ),
    ),
    "averaged twice": Section(
        symptom="The gradient's norm is N times too small, and under SGD the loss falls more slowly",
        unnoticed="Adam cancels this factor, too.",
        write="Remove one of the two divisions.",
        intended_if="you divided the learning rate by N",
        lines=(
            WrongLine(
                'gradients = jax.tree.map(lambda g: g / N, lax.pmean(gradients, "data"))',
                'gradients = lax.pmean(gradients, "data")',
            ),
        ),
    ),
    "mean of means": Section(
        symptom="The loss or the update is slightly off, most of all in a padded batch",
        unnoticed="If all devices hold equally many valid examples, the mean of their means is the batch's mean, so a missing count "
        "shows only in padded or uneven batches.",
        write="Divide sums: `lax.psum(gradient_sums, axis_name) / lax.psum(count, axis_name)`. Average before you clip. Give batch "
        "norm the global mean and mean of squares (Flax: `axis_name`).",
        intended_if="clipping, batch norm or a contrastive loss should be local",
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
        unnoticed="Running statistics matter only in evaluation.",
        write="Average the mean and the mean of squares (Flax: `axis_name`), and take the variance from them. Add counts up.",
        intended_if="the values are environments, an accumulator that is averaged later, or statistics that should be local. Then name them in `per_device`",
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
        unnoticed="Each mask is random, but B examples share B/N masks.",
        write="Fold each example's index in the global batch into the key (`jax.random.fold_in`).",
        intended_if="all devices share their noise, as in some reinforcement learning",
        lines=(
            WrongLine("index = jnp.arange(b)", "index = device * b + jnp.arange(b)"),
        ),
    ),
    "key stands still": Section(
        symptom="Dropout or augmentation has hardly any effect",
        unnoticed="Only two updates side by side show that their masks are the same.",
        write="Take `jax.random.fold_in(key, state.step)`, or return the new key.",
        intended_if="the random numbers are fixed, as in a random projection",
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
        write="Pad an uneven batch with examples of weight 0, and drop none.",
        intended_if="these examples are padding. Give them the weight 0 in the reference as well",
        lines=(
            WrongLine(
                'weight = batch["weight"].at[-1].multiply(device < N - 1)',
                'weight = batch["weight"]',
                is_shown=False,
            ),
        ),
    ),
    "counted unequally": Section(
        symptom="An epoch counts more examples than the data set has",
        write="If you repeat examples to fill up a batch, give the repeated ones the weight 0.",
        intended_if="you weight examples, and the reference doesn't",
        lines=(
            WrongLine(
                'weight = batch["weight"].at[1].multiply(1 + (device == 0))',
                'weight = batch["weight"]',
                is_shown=False,
            ),
            WrongLine(
                'weight = batch["weight"] * (1 + 0.5 * (device == 0))',
                'weight = batch["weight"]',
                is_shown=False,
            ),
        ),
    ),
    "drift": Section(
        symptom="The devices start with equal parameters, and move apart slowly",
        unnoticed="Most programs save and evaluate only device 0's copy.",
        write="Compute the update only from averaged values.",
        intended_if="each device has its own key or environments",
        lines=(
            WrongLine(
                "p + rate * u - decay * p + 1e-4 * device",
                "p + rate * u - decay * p",
                ("pmap", "shard_map"),
                is_shown=False,
            ),
        ),
    ),
    "NaN on one device": Section(
        symptom="The loss becomes NaN in an epoch's last, padded batch",
        unnoticed="The all-reduce then spreads the NaN to all devices, so you can't see where it began.",
        write="Divide after summing: `lax.psum(sums, axis_name) / lax.psum(count, axis_name)`.",
    ),
    "one device's metrics": Section(
        symptom="The printed loss depends on the device, or jumps about more than on one",
        unnoticed="The training is correct, but you look at a fraction of the examples.",
        write="Add up sums and counts with `lax.psum`, and average means over equally many examples with `lax.pmean`.",
        intended_if="the loop averages the devices' metrics",
        lines=(
            WrongLine(
                "total, hits, count = total, hits, weight.sum()",
                'total, hits, count = lax.psum((total, hits, weight.sum()), "data")',
            ),
        ),
    ),
    "scaled metrics": Section(
        symptom="A metric is N or 1/N times what one device prints, and the model is the same",
        write="Take `lax.pmean` for means, `lax.psum` for sums, and `lax.pmax` for maxima.",
        intended_if="the loop divides or multiplies it",
        lines=(
            WrongLine(
                'norm = lax.psum(optax.tree.norm(params), "data")',
                'norm = lax.pmean(optax.tree.norm(params), "data")',
            ),
        ),
    ),
    "every device computes everything": Section(
        symptom="Eight devices take as long as one for the same global batch",
        unnoticed="All numbers are correct.",
        write='Place it with `jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))`, or give `in_shardings` or '
        "`in_specs`.",
        intended_if="the step computes more than the reference, such as a second pass",
        lines=(
            WrongLine(
                "specs = (P(), P(), *[P()] * keys)",
                'specs = (P(), P("data"), *[P()] * keys)',
                ("shard_map",),
                is_shown=False,
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
batch. If that run is just as bad, [the larger batch](slower_or_worse.md#my-loss-is-worse-on-eight-devices) is to blame, and
not your step. Otherwise find what you see, and follow the link. N is the number of devices.

| where | what you see |
| --- | --- |"""

CHECK = """
If you see none of these, begin with the check below, because under Adam many mistakes leave the loss curve as it was. Then let
[`verify`](verify.md) compare your step with one device. Its report names sections of this page.

## Do all devices hold the same parameters?

Make a few updates, and call this function with the parameters as your step returned them, before anything selects device 0's copy.
It returns the largest difference between any two devices' copies:

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

The parameters may be pmap's stacked ones, `[N, ...]`, or replicated ones, but none that you split on purpose. If you get more than 0,
look at [no all-reduce](#no-all-reduce) first, and then at [drift](#drift). At 0 all devices hold the same numbers, but these may
still be wrong, for example after a sum of gradients that should be a mean. That's why `verify` compares with one device."""

SECTIONS_HEAD = """
## Mistakes of a step

In the examples a minus marks a wrong line, and a plus its correction. They're lines of [a small training
step](../tests/verify/program.py). Under jit the compiler adds the all-reduces, so you can't forget one. If your devices are meant to
hold different values, [tell `verify` so](verify.md#which-reference)."""

FOOT = """
## Mistakes outside of the step

`verify` calls your step in one process, so it can't see what goes wrong in your loop:

| what you see | what it usually is | look at |
| --- | --- | --- |
| With more processes, an epoch takes as many updates as before | every process reads the whole data set, so all train on the same examples | [several processes](processes.md), [lesson 17](../lessons/17_many_processes.ipynb) |
| The program hangs in the last batch of an epoch | one process has a batch less, and the others wait for it in an all-reduce | [lesson 17](../lessons/17_many_processes.ipynb) |
| The loss jumps after a restart | the checkpoint lacks the optimizer's state, the key or the place in the data | [lesson 14](../lessons/14_survive_a_kill.ipynb) |
| The test result has a few examples too many or too few | evaluation drops the last batch, or counts its padding | [lesson 08](../lessons/08_keep_dropout_and_metrics_exact.ipynb) |
| The numbers are correct, but every update takes too long | an all-reduce runs in a loop, once for each layer or micro-batch | the line "The devices exchange" of `verify`'s report, [no faster](slower_or_worse.md#my-second-gpu-is-no-faster) |"""


def print_section(mistake: str) -> None:
    """Print a section of the page."""
    section = SECTIONS[mistake]
    print(f"\n### {mistake}\n")
    cause = f"Usually {MISTAKES[mistake]}."
    if section.unnoticed:
        cause += f" {section.unnoticed}"
    print(f"- **Cause:** {cause}")
    print(f"- **What to write:** {section.write}")
    if section.intended_if:
        print(f"- **Intended if** {section.intended_if}.")
    shown = [line for line in section.lines if line.is_shown]
    if shown:
        examples = [f"- {line.wrong}\n+ {line.correct}\n" for line in shown]
        print("\n```diff\n" + "\n".join(examples) + "```")


def main() -> None:
    """Print the page."""
    print(HEAD)
    for place, mistakes in PLACES.items():
        where = f"**{place}**"
        for mistake in mistakes:
            symptom = SECTIONS[mistake].symptom
            print(f"| {where} | [{symptom}](#{find_address(mistake)}) |")
            where = ""  # the next rows have the same place
    print(CHECK)
    print(SECTIONS_HEAD)
    for mistakes in PLACES.values():
        for mistake in mistakes:
            print_section(mistake)
    print(FOOT)


if __name__ == "__main__":
    main()
