"""The mistakes that `verify` knows: the sentence with the cause and the cure of each. docs/mistakes.md is made of it.

python -m pmapdp.verify.mistakes > docs/mistakes.md
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

WAYS = ("pmap", "shard_map", "jit")
EVERYWHERE, NOT_UNDER_JIT, NOWHERE = WAYS, WAYS[:2], ()

Cause = tuple[str, str]  # its name in the table, and its sentence with what was found


class Mistake(NamedTuple):
    """One mistake."""

    ways: tuple[str, ...]  # under which it can be made; a test plants it there
    sentence: str  # what verify prints; in braces what was found


MISTAKES = {
    "no all-reduce": Mistake(
        NOT_UNDER_JIT,
        "{leaves}: every device makes the update of its own examples, because the all-reduce is missing. Average all "
        "gradients in one pytree before the update: lax.pmean(gradients, axis_name).",
    ),
    "sum for mean": Mistake(
        EVERYWHERE,
        "{leaves}: the update is that of a gradient, or of a learning rate, {ratio} times as large. Either the "
        "gradients are summed over {N} devices (use lax.pmean in place of lax.psum), or the learning rate is "
        "multiplied by the number of devices (use that of one device).",
    ),
    "check_vma": Mistake(
        ("shard_map",),
        "{leaves}: the update is that of a gradient {ratio} times as large, under check_vma=True. There jax.grad "
        "already sums the gradient of a replicated parameter over the {N} devices; lax.pmean averages equal sums, and "
        "lax.psum adds them once more. Differentiate lax.pmean(loss) and leave the gradient alone, or set "
        "check_vma=False.",
    ),
    "averaged twice": Mistake(
        EVERYWHERE,
        "{leaves}: the update is that of a gradient 1/{N} as large. The loss or the gradient is divided by the number "
        "of devices, and lax.pmean divides once more. Remove one of the two.",
    ),
    "another scale": Mistake(
        NOWHERE,
        "{leaves}: the update is that of a gradient {ratio} times as large. Compare the division of the loss (by how "
        "many examples?), the learning rate and the number of all-reduces in both.",
    ),
    "weight decay": Mistake(
        EVERYWHERE,
        "{leaves}: the difference is {ratio} times the old value, whatever the examples. Apply the weight decay once, "
        "after the all-reduce, with the factor of one device.",
    ),
    "mean of means": Mistake(
        EVERYWHERE,
        "{leaves}: this is the mean of what each device computes from its own examples, and it depends on how the "
        "batch is cut. If the devices hold different numbers of valid examples, divide sums: lax.psum(sum of "
        "gradients, axis_name) / lax.psum(count, axis_name). If each device normalises its examples alone, as batch "
        "norm does, average their mean and their mean of squares (lax.pmean; in Flax, axis_name). If all draw the same "
        "random numbers, fold the index of the example in the global batch into the key (jax.random.fold_in).",
    ),
    "local statistics": Mistake(
        EVERYWHERE,
        "{leaves}: these are the statistics of each device's own examples, or their average. Average the mean and the "
        "mean of squares over the devices (lax.pmean; in Flax, axis_name), then take the variance from them; add "
        "counts up (lax.psum). If each device is meant to keep its own, give per_device=[...] and old_program as the "
        "reference.",
    ),
    "nonlinear": Mistake(
        EVERYWHERE,
        "{leaves}: the update is the mean of what each device would do with its own gradient. The gradient goes "
        "through clipping, normalising or another nonlinear operation before the all-reduce. Average the gradients "
        "first.",
    ),
    "same mask": Mistake(
        EVERYWHERE,
        "{leaves}: all devices draw the same random numbers for their own examples. Fold the index of the example in "
        "the global batch into its key (jax.random.fold_in), for example lax.axis_index(axis_name) * b + arange(b).",
    ),
    "other random numbers": Mistake(
        EVERYWHERE,
        "{leaves}: the step draws other random numbers than the reference, as when each device folds its own number "
        "into the key. Fold the index of the example in the global batch into its key (jax.random.fold_in), in both; "
        "or compare with the numbers of each device: reference=old_program(step, axis_name, groups=N).",
    ),
    "key stands still": Mistake(
        EVERYWHERE,
        "The same random numbers are drawn in every update. Fold the update's number into the key "
        "(jax.random.fold_in(key, state.step)), or return the new key with the state.",
    ),
    "dropped": Mistake(
        EVERYWHERE,
        "Examples {dropped} have no influence on the update: they are dropped. Let every example reach one device, and "
        "pad a batch that does not divide with examples of weight 0.",
    ),
    "counted unequally": Mistake(
        EVERYWHERE,
        "Examples {heavy} count {ratio} times as much as examples {light}. Let every example reach exactly one device, "
        "weight none by its device or place, and give repeated examples that fill up a batch the weight 0.",
    ),
    "padding counts": Mistake(
        EVERYWHERE,
        "{leaves}: this is the result for the padded batch, {rows} rows, as if the padding were examples. Give padding "
        "the weight 0, and divide sums by the sum of the weights.",
    ),
    "drift": Mistake(
        NOT_UNDER_JIT,
        "{leaves}: the devices hold different values. Something that belongs to one device enters the update: "
        "gradients or another value without an all-reduce, lax.axis_index, a key of its own, or another initial state. "
        "Average the gradients with lax.pmean, and compute the update from averaged values alone. If each device is "
        "meant to hold its own, give per_device=[...] with the names of these leaves.",
    ),
    "one device's metrics": Mistake(
        EVERYWHERE,
        "{leaves}: these are the metrics of one device's examples, reported as those of the batch. All-reduce them: "
        "lax.psum for sums and counts, lax.pmean for means over equal numbers of examples.",
    ),
    "scaled metrics": Mistake(
        EVERYWHERE,
        "{leaves}: the metric is {ratio} times that of the whole batch on {N} devices. Use lax.pmean for means and "
        "lax.psum for sums.",
    ),
    "every device computes everything": Mistake(
        EVERYWHERE,
        "The busiest device makes {ratio:.0%} of the floating-point operations of the whole batch; its part would be "
        "{part:.0%}. The batch is not split where it is used. Place it with jax.device_put(batch, NamedSharding(mesh, "
        "PartitionSpec('data'))), or give in_shardings or in_specs.",
    ),
    "recompilation": Mistake(
        EVERYWHERE,
        "The step is compiled again in update {update}. Build the compiled function once, outside the step; pass "
        "numbers that change as arrays and not as static arguments; return the state in the types in which it came.",
    ),
    "transfer": Mistake(
        EVERYWHERE,
        "The step moves an array at every call ({what}). Place all arguments and constants once, with jax.device_put "
        "and the sharding that the step wants.",
    ),
    "used after donation": Mistake(
        EVERYWHERE,
        "The memory of this array was donated to an update and is read afterwards. Use what the step returns, copy "
        "before donating (jax.numpy.copy), or leave donate_argnums out.",
    ),
    "unseen replication": Mistake(
        NOWHERE,
        "A result that out_specs calls replicated varies over the devices by its type, as what lax.all_gather returns. "
        "Average it (lax.pmean), gather it with lax.all_gather(..., to='invarying'), or set check_vma=False.",
    ),
    "hidden state": Mistake(
        NOWHERE,
        "{leaves}: each update is right from the reference's state, but the updates in a row are not. The step keeps "
        "or loses something between its calls: return all of its state, and keep none in variables of Python.",
    ),
    "follows": Mistake(NOWHERE, "This follows from a mistake that another check names."),
    "unknown": Mistake(
        NOWHERE,
        "{leaves}: no mistake that verify knows explains the difference, or there are several. {facts} Compare loss "
        "and gradient with the reference for the first leaf, at first without random numbers, batch norm and clipping.",
    ),
}


def named(cause: str, leaves: Sequence[str] = (), **found: Any) -> Cause:
    """A cause and its sentence, with what was found; of many leaves the first three are named."""
    more = f" and {len(leaves) - 3} more" if len(leaves) > 3 else ""
    sentence = MISTAKES[cause].sentence.format(leaves=", ".join(leaves[:3]) + more, **found)
    return cause, " ".join(sentence.split())  # where nothing was found for a brace, one space and not two


def page() -> str:
    """docs/mistakes.md."""
    lines = [
        "# The mistakes that verify knows",
        "",
        "This page is made by `python -m pmapdp.verify.mistakes`. It has the name of each mistake, as `report.causes`",
        "gives it, and the sentence that `verify` prints; the braces stand for what was found. The tests plant each",
        "mistake alone in a correct program of each kind and require its sentence. Under jit, arrays are those of the",
        "whole batch and the compiler adds the collectives, so some mistakes cannot be made there. A dash: the tests",
        "find it in other programs, or it is no mistake of its own.",
        "",
        f"| cause | {' | '.join(WAYS)} | what verify prints |",
        "| --- " * (len(WAYS) + 2) + "|",
    ]
    for name, (ways, sentence) in MISTAKES.items():
        found = " | ".join("found" if way in ways else "cannot be made" if ways else "–" for way in WAYS)
        lines.append(f"| {name} | {found} | {sentence} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
