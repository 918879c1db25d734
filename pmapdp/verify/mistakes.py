"""The usual mistakes, and the facts by which each is recognized.

`experiments.py` fills in the facts. A row fits if its rule, a function of the facts,
returns True. docs/mistakes.md is made from the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class Facts:
    """The facts that experiments showed about a difference from the reference.

    A fact is true whatever the program means by it.

    Attributes:
        sentences: The facts with their leaves and numbers, for the report.
        local_nan: On some device's examples alone, the reference is NaN.
        local_results: A device holds the reference's result on its own examples.
        mean_is_correct: The devices differ, and their mean is the reference's value.
        other_difference: The devices differ in a way that is neither of these.
        mean_of_local_results: A value is the mean of the results on each device's
            examples.
        first_local_result: A value is the result on the first device's examples.
        used: Other results depend on a leaf with such a value, as on a parameter.
        unused: No other result of the update depends on it.
        same_random_numbers: The devices draw the same random numbers.
        repeated_random_numbers: The second update draws those of the first.
        times_devices: Changes are N times the reference's.
        times_inverse_devices: Changes are 1/N times the reference's.
        checks_vma: Changes are N or N² times the reference's, with `check_vma=True`.
        ignored_example: Some examples have no influence.
        unequal_examples: Some examples count more than others.
        unsplit_work: A device makes more than its part of the operations.
        local_metric: A metric differs between devices, or is one device's.
        combined_metric: A metric is the mean or the sum of the devices' metrics.
        scaled_metric: A metric is N, N² or 1/N times the reference's.
    """

    sentences: list[str] = field(default_factory=list)
    local_nan: bool = False
    local_results: bool = False
    mean_is_correct: bool = False
    other_difference: bool = False
    mean_of_local_results: bool = False
    first_local_result: bool = False
    used: bool = False
    unused: bool = False
    same_random_numbers: bool = False
    repeated_random_numbers: bool = False
    times_devices: bool = False
    times_inverse_devices: bool = False
    checks_vma: bool = False
    ignored_example: bool = False
    unequal_examples: bool = False
    unsplit_work: bool = False
    local_metric: bool = False
    combined_metric: bool = False
    scaled_metric: bool = False


class WrongLine(NamedTuple):
    """A line of tests/verify/program.py, and what people write in its place."""

    wrong: str
    correct: str
    under: tuple[str, ...] = ("pmap", "shard_map", "jit")


@dataclass(frozen=True)
class Mistake:
    """A row of the table.

    Attributes:
        name: Its heading on the page.
        rule: Returns True if the row fits these facts.
        symptom: What you notice without `verify`.
        usually: What it usually is.
        write: The correction.
        no_mistake_if: When the program is correct as it is, as a clause, if ever.
        lines: Examples.
    """

    name: str
    rule: Callable[[Facts], bool]
    symptom: str
    usually: str
    write: str
    no_mistake_if: str = ""
    lines: tuple[WrongLine, ...] = ()

    @property
    def anchor(self) -> str:
        """The address of the heading on the page."""
        return self.name.replace(" ", "-").replace("'", "").lower()


def no_all_reduce(facts: Facts) -> bool:
    """Each device updates its parameters from its own examples."""
    return (facts.local_results or facts.mean_is_correct) and facts.used


def sum_for_mean(facts: Facts) -> bool:
    """The update is N times as large."""
    return facts.times_devices and not facts.checks_vma


def check_vma(facts: Facts) -> bool:
    """The update is N or N² times as large, and JAX adds up, too."""
    return facts.checks_vma


def averaged_twice(facts: Facts) -> bool:
    """The update is 1/N as large."""
    return facts.times_inverse_devices


def mean_of_means(facts: Facts) -> bool:
    """A result depends on how the batch is cut."""
    return (facts.mean_of_local_results and facts.used) or facts.combined_metric


def local_statistics(facts: Facts) -> bool:
    """A value on which nothing else depends comes from a device's own examples."""
    return facts.unused and (
        facts.local_results
        or facts.mean_is_correct
        or facts.mean_of_local_results
        or facts.first_local_result
    )


def same_mask(facts: Facts) -> bool:
    """The devices draw the same random numbers."""
    return facts.same_random_numbers


def key_stands_still(facts: Facts) -> bool:
    """Each update draws the same random numbers."""
    return facts.repeated_random_numbers


def dropped(facts: Facts) -> bool:
    """Some examples have no influence."""
    return facts.ignored_example


def counted_unequally(facts: Facts) -> bool:
    """Some examples count more than others."""
    return facts.unequal_examples


def drift(facts: Facts) -> bool:
    """The devices hold different values, not of their own examples alone."""
    return facts.other_difference and not facts.used


def nan_on_one_device(facts: Facts) -> bool:
    """One device's examples make NaN, and the whole batch doesn't."""
    return facts.local_nan


def one_devices_metrics(facts: Facts) -> bool:
    """A metric is over one device's examples."""
    return facts.local_metric


def scaled_metrics(facts: Facts) -> bool:
    """A metric is a multiple of the whole batch's."""
    return facts.scaled_metric


def every_device_computes_everything(facts: Facts) -> bool:
    """The work isn't split."""
    return facts.unsplit_work


ROWS = (
    Mistake(
        "no all-reduce",
        no_all_reduce,
        symptom="Another device's checkpoint gives another test result",
        usually="the all-reduce of some or all gradients is missing",
        write="Average all gradients in one pytree before the update.",
        no_mistake_if="each device trains its own model",
        lines=(
            WrongLine(
                "gradients = gradients",
                'gradients = lax.pmean(gradients, "data")',
                ("pmap", "shard_map"),
            ),
            WrongLine(
                'gradients = {**lax.pmean(gradients, "data"), '
                '"logits": gradients["logits"]}',
                'gradients = lax.pmean(gradients, "data")',
                ("pmap", "shard_map"),
            ),
        ),
    ),
    Mistake(
        "sum for mean",
        sum_for_mean,
        symptom="The gradient's norm grows with the number of devices; "
        "under SGD the loss may jump",
        usually="the gradients are added up over N devices, or the learning rate is "
        "multiplied by N",
        write="Take `lax.pmean` in place of `lax.psum`, or one device's learning rate.",
        no_mistake_if="the loss is divided by a number of devices that was read before "
        "tracing. Then the reference is N times too small: divide by "
        "`lax.axis_size(axis_name)`",
        lines=(
            WrongLine(
                'gradients = lax.psum(gradients, "data")',
                'gradients = lax.pmean(gradients, "data")',
            ),
            WrongLine("rate, decay = N, 0.001", "rate, decay = 1, 0.001"),
        ),
    ),
    Mistake(
        "check_vma",
        check_vma,
        symptom="After a port from pmap to shard_map, the gradient is N times as large",
        usually="`jax.grad` has already added up the gradient of a replicated "
        "parameter, so `lax.pmean` averages equal sums and `lax.psum` multiplies "
        "once more",
        write='Differentiate `lax.pcast(params, axis_name, to="varying")` and average '
        "the gradient: JAX then refuses a step that forgets to. `check_vma=False` is "
        "correct too, but turns that check off.",
        no_mistake_if="the learning rate is multiplied by N on purpose",
        lines=(WrongLine("check_vma=True", "check_vma=False", ("shard_map",)),),
    ),
    Mistake(
        "averaged twice",
        averaged_twice,
        symptom="The gradient's norm shrinks with the number of devices; "
        "under SGD the loss falls more slowly",
        usually="the loss or the gradient is divided by N, and `lax.pmean` divides "
        "once more",
        write="Remove one of the two divisions.",
        no_mistake_if="the learning rate is divided by N on purpose",
        lines=(
            WrongLine(
                "gradients = jax.tree.map(lambda g: g / N, "
                'lax.pmean(gradients, "data"))',
                'gradients = lax.pmean(gradients, "data")',
            ),
        ),
    ),
    Mistake(
        "mean of means",
        mean_of_means,
        symptom="The loss of one batch changes a little with the number of devices, "
        "most of all with padding",
        usually="the devices hold different numbers of valid examples, or each clips "
        "its own gradient or normalizes its own examples",
        write="Divide sums: `lax.psum(gradient_sums, axis_name) / "
        "lax.psum(count, axis_name)`. Average before you clip. Give batch norm the "
        "global mean and mean of squares (Flax: `axis_name`).",
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
    Mistake(
        "local statistics",
        local_statistics,
        symptom="The training loss is as on one device, but the test result depends on "
        "which device is saved",
        usually="batch norm's running statistics, or a count, are each device's own",
        write="Average the mean and the mean of squares (Flax: `axis_name`), and take "
        "the variance from them. Add counts up.",
        no_mistake_if="they are environments, an accumulator that is averaged later, "
        "or local on purpose",
        lines=(
            WrongLine(
                "mean, square = moments(h)",
                'mean, square = lax.pmean(moments(h), "data")',
            ),
            WrongLine(
                'mean, square = lax.pmean(h.mean(0), "data"), '
                'lax.pmean(h.var(0), "data") + lax.pmean(h.mean(0), "data") ** 2',
                'mean, square = lax.pmean(moments(h), "data")',
            ),
        ),
    ),
    Mistake(
        "same mask",
        same_mask,
        symptom="Eight devices equal one without dropout, but not with it",
        usually="every device gets the same key",
        write="Fold each example's index in the global batch into the key "
        "(`jax.random.fold_in`).",
        no_mistake_if="all devices share their noise, as in some reinforcement "
        "learning",
        lines=(
            WrongLine("index = jnp.arange(b)", "index = device * b + jnp.arange(b)"),
        ),
    ),
    Mistake(
        "key stands still",
        key_stands_still,
        symptom="Dropout or augmentation has hardly any effect",
        usually="the new key isn't returned, or the update's number isn't folded "
        "into it",
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
    Mistake(
        "dropped",
        dropped,
        symptom="An epoch counts fewer examples than the data set has",
        usually="some examples reach no device, or get the weight 0",
        write="Pad an uneven batch with examples of weight 0, and drop none.",
        no_mistake_if="they are padding. Give them weight 0 in the reference, too",
        lines=(
            WrongLine(
                'weight = batch["weight"].at[-1].multiply(device < N - 1)',
                'weight = batch["weight"]',
            ),
        ),
    ),
    Mistake(
        "counted unequally",
        counted_unequally,
        symptom="An epoch counts more examples than the data set has",
        usually="an example reaches two devices, or its weight depends on its device",
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
    Mistake(
        "drift",
        drift,
        symptom="The devices start with equal parameters and move apart slowly",
        usually="a device's own value enters the update: one without an all-reduce, "
        "`lax.axis_index`, a key, or another initial state",
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
    Mistake(
        "NaN on one device",
        nan_on_one_device,
        symptom="The loss becomes NaN in an epoch's last, padded batch",
        usually="a device holds padding alone, so its weights add up to 0, and 0 / 0 "
        "is NaN",
        write="Divide after adding up: `lax.psum(sums, axis_name) / "
        "lax.psum(count, axis_name)`.",
    ),
    Mistake(
        "one device's metrics",
        one_devices_metrics,
        symptom="The printed loss depends on the device, or jumps about more than on "
        "one",
        usually="the metric isn't all-reduced",
        write="Add up sums and counts with `lax.psum`, and average means over equally "
        "many examples with `lax.pmean`.",
        no_mistake_if="the loop averages the devices' metrics",
        lines=(
            WrongLine(
                "total, hits, count = total, hits, weight.sum()",
                'total, hits, count = lax.psum((total, hits, weight.sum()), "data")',
            ),
        ),
    ),
    Mistake(
        "scaled metrics",
        scaled_metrics,
        symptom="A metric is N or 1/N times what one device prints, and the model is "
        "the same",
        usually="a mean is added up over the devices, or a sum is averaged",
        write="Take `lax.pmean` for means, and `lax.psum` for sums.",
        no_mistake_if="the loop divides or multiplies it",
        lines=(
            WrongLine(
                'norm = lax.psum(optax.tree.norm(params), "data")',
                'norm = lax.pmean(optax.tree.norm(params), "data")',
            ),
        ),
    ),
    Mistake(
        "every device computes everything",
        every_device_computes_everything,
        symptom="Eight devices take as long as one for the same global batch",
        usually="the batch isn't split where it's used",
        write="Place it with `jax.device_put(batch, NamedSharding(mesh, "
        'PartitionSpec("data")))`, or give `in_shardings` or `in_specs`.',
        no_mistake_if="the step computes more than the reference, such as a second "
        "pass",
        lines=(
            WrongLine(
                "specs = (P(), P(), *[P()] * keys)",
                'specs = (P(), P("data"), *[P()] * keys)',
                ("shard_map",),
            ),
            WrongLine(
                "batch = lax.with_sharding_constraint(batch, NamedSharding(mesh, P()))",
                "batch = lax.with_sharding_constraint("
                'batch, NamedSharding(mesh, P("data")))',
                ("jit",),
            ),
        ),
    ),
)
MISTAKES = {row.name: row for row in ROWS}


def find_mistakes(facts: Facts) -> tuple[str, ...]:
    """Return the names of the rows whose rules hold."""
    return tuple(row.name for row in ROWS if row.rule(facts))
