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
        write: The correction.
        no_mistake_if: When the program is correct as it is, as a clause, if ever.
        lines: Examples.
    """

    symptom: str
    fact: str
    write: str
    no_mistake_if: str = ""
    lines: tuple[WrongLine, ...] = ()


SECTIONS = {
    "no all-reduce": Section(
        symptom="Another device's checkpoint gives another test result",
        fact="each device holds the reference's result on its own examples, and other results depend on it",
        write="Average all gradients in one pytree before the update.",
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
        symptom="The gradient's norm grows with the number of devices; under SGD the loss may jump",
        fact="the change is N times the reference's, or each example counts N times as much",
        write="Take `lax.pmean` in place of `lax.psum`, or one device's learning rate.",
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
        symptom="After a port from pmap to shard_map, the gradient is N times as large",
        fact="the change is N or N² times the reference's, and the step has a `shard_map` with `check_vma=True`",
        write='Differentiate `lax.pcast(params, axis_name, to="varying")` and average the gradient: JAX then refuses a step that '
        "forgets to. `check_vma=False` is correct too, but turns that check off.",
        no_mistake_if="the learning rate is multiplied by N on purpose",
        lines=(WrongLine("check_vma=True", "check_vma=False", ("shard_map",)),),
    ),
    "averaged twice": Section(
        symptom="The gradient's norm shrinks with the number of devices; under SGD the loss falls more slowly",
        fact="the change is 1/N of the reference's, or each example counts 1/N as much",
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
        symptom="The loss of one batch changes a little with the number of devices, most of all with padding",
        fact="a value is the mean of the reference's results on each device's examples, and other results depend on it",
        write="Divide sums: `lax.psum(gradient_sums, axis_name) / lax.psum(count, axis_name)`. Average before you clip. Give batch "
        "norm the global mean and mean of squares (Flax: `axis_name`).",
        no_mistake_if="clipping or batch norm is local on purpose",
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
        symptom="The training loss is as on one device, but the test result depends on which device is saved",
        fact="a value is the result on one device's examples, or the mean of such results, and nothing else depends on it",
        write="Average the mean and the mean of squares (Flax: `axis_name`), and take the variance from them. Add counts up.",
        no_mistake_if="they are environments, an accumulator that is averaged later, or local on purpose",
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
        write="Fold each example's index in the global batch into the key (`jax.random.fold_in`).",
        no_mistake_if="all devices share their noise, as in some reinforcement learning",
        lines=(
            WrongLine("index = jnp.arange(b)", "index = device * b + jnp.arange(b)"),
        ),
    ),
    "key stands still": Section(
        symptom="Dropout or augmentation has hardly any effect",
        fact="the second update draws the random numbers of the first again",
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
        write="Pad an uneven batch with examples of weight 0, and drop none.",
        no_mistake_if="they are padding. Give them weight 0 in the reference, too",
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
        write="Give a repeated example that fills up a batch the weight 0.",
        no_mistake_if="the weights are meant, and the reference lacks them",
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
        symptom="The devices start with equal parameters and move apart slowly",
        fact="the devices hold different values, which aren't the results on their own examples",
        write="Compute the update from averaged values alone.",
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
        fact="on the examples of one device alone, the reference is NaN, too",
        write="Divide after adding up: `lax.psum(sums, axis_name) / lax.psum(count, axis_name)`.",
    ),
    "one device's metrics": Section(
        symptom="The printed loss depends on the device, or jumps about more than on one",
        fact="a metric differs between devices, or it's the reference's result on one device's examples",
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
        fact="a metric is N, N² or 1/N times the reference's value",
        write="Take `lax.pmean` for means, and `lax.psum` for sums.",
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
        fact="the busiest device makes more than its part of the operations",
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

HEAD = """# Usual mistakes

Your loss is worse on eight devices than on one, and nothing raised an error? Look for what you see, and follow the link.
If nothing fits, let [`verify`](verify.md) compare your step with one device, because under Adam many mistakes leave the loss
curve as it was. Its report states facts, as in the second column, and links to the sections below.

| what you see | what `verify` says | look at |
| --- | --- | --- |"""

SECTIONS_HEAD = """
The examples are lines of [a small training step](../tests/verify/program.py), and the one with a minus is wrong. Under jit the
compiler adds the all-reduces, so you can't forget one. If each device is meant to hold values of its own, name them in
`per_device`, and take `old_program` as the reference."""


def print_section(mistake: str) -> None:
    """Print a section of the page."""
    section = SECTIONS[mistake]
    print(f"\n## {mistake}\n")
    print(f"Usually {MISTAKES[mistake]}. {section.write}")
    if section.no_mistake_if:
        print(f"\nIt's no mistake if {section.no_mistake_if}.")
    for line in section.lines:
        print(f"\n```diff\n- {line.wrong}\n+ {line.correct}\n```")


def main() -> None:
    """Print the page."""
    print(HEAD)
    for mistake in MISTAKES:
        section = SECTIONS[mistake]
        link = f"[{mistake}](#{find_address(mistake)})"
        print(f"| {section.symptom} | {section.fact} | {link} |")
    print(SECTIONS_HEAD)
    for mistake in MISTAKES:
        print_section(mistake)


if __name__ == "__main__":
    main()
