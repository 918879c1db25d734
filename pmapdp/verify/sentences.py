"""What usually causes each kind of difference, and its cure: the sentences of the report and of docs/verify.md."""

# The name of a cause -> the mistake in a few words, and the sentence; in braces what the check found.
CAUSES = {
    "no all-reduce": (
        "no all-reduce",
        "Every device makes the update of its own examples: the all-reduce is missing. "
        "Average the gradients before the update, for example lax.pmean(gradients, axis_name).",
    ),
    "left out": (
        "all-reduce forgotten for some leaves",
        "{leaves}: every device keeps the update of its own examples, and the other leaves are averaged. "
        "Give all gradients to lax.pmean in one pytree.",
    ),
    "drift": (
        "replicas drift apart",
        "{leaves}: the devices hold different values. Something that belongs to one device enters the update after the "
        "all-reduce: lax.axis_index, a key of its own, another initial state, or a value that was never averaged. "
        "Compute the update from averaged values alone.",
    ),
    "sum for mean": (
        "psum where pmean was meant",
        "{leaves}: the step moves {ratio} times as far as the reference. Either the gradients are summed over {N} "
        "devices where their mean was meant (use lax.pmean in place of lax.psum), or the learning rate was multiplied "
        "by the number of devices (use that of one device on the whole batch).",
    ),
    "check_vma": (
        "pmean(grad) under check_vma=True",
        "{leaves}: the gradient is {ratio} times too large, and the step is a shard_map with check_vma=True. There "
        "jax.grad already sums the gradient of a replicated parameter over the devices, so that lax.pmean averages "
        "{N} equal sums. Differentiate lax.pmean(loss) and leave the gradient alone, or set check_vma=False.",
    ),
    "averaged twice": (
        "pmean twice",
        "{leaves}: the step moves 1/{N} as far as the reference. The gradients are averaged twice: the loss or the "
        "gradient is divided by the number of devices, and lax.pmean divides once more. Remove one of the two.",
    ),
    "another scale": (
        "another scale",
        "{leaves}: the step moves {ratio} times as far as the reference. Compare the learning rate, the division of "
        "the loss (by how many examples?) and the clipping in both.",
    ),
    "learning rate": (
        "learning rate scaled with the number of devices",
        "{leaves}: the step moves {ratio} times as far, and the optimizer's averages of the gradient are right. "
        "So the learning rate differs, and not the gradient: use that of one device on the whole batch, or scale it in "
        "the reference too if you mean it.",
    ),
    "weight decay": (
        "weight decay scaled with the number of devices",
        "{leaves}: the difference is {ratio} times the old value, whatever the examples. The weight decay differs: "
        "apply it once, after the all-reduce, with the factor of one device.",
    ),
    "mean of means": (
        "mean of means with an uneven or padded batch",
        "{leaves}: the step averages the devices' own means, although the devices hold different numbers of valid "
        "examples. Sum over the devices and divide by the sum of the counts: "
        "lax.psum(sum of gradients, axis_name) / lax.psum(count, axis_name).",
    ),
    "not finite": (
        "a device divides by its own count, which is zero",
        "{leaves}: not a finite number, and the reference's is. Usually a device that gets only padding divides by its "
        "own count of zero. Divide the sum over the devices by the sum of the counts (lax.psum of both).",
    ),
    "local statistics": (
        "batch statistics left local",
        "{leaves}: every device keeps the statistics of its own examples. Compute them over the global batch: "
        "average the mean and the mean of squares over the devices (lax.pmean), then take the variance from them.",
    ),
    "averaged statistics": (
        "variances averaged",
        "{leaves}: this is the average of the devices' own statistics. A variance needs the mean of the global batch: "
        "average the mean and the mean of squares over the devices (lax.pmean), and take the variance from them.",
    ),
    "local normalisation": (
        "batch normalised on each device alone",
        "{leaves}: the update is the mean of what each device would do with its examples alone, and the loss depends "
        "on how the batch is cut. An operation over the batch stays local, usually batch norm: compute its mean and "
        "its mean of squares over all devices (lax.pmean; in Flax, axis_name).",
    ),
    "nonlinear": (
        "clipping or normalising before the all-reduce",
        "{leaves}: the update is the mean of what each device would do with its examples alone, and the loss does not "
        "depend on how the batch is cut. The gradient goes through clipping, normalising or another nonlinear "
        "operation before the all-reduce. Average the gradients first.",
    ),
    "same mask": (
        "the same dropout mask on every device",
        "{leaves}: all devices draw the same random numbers for their own examples. Fold the index of the example in "
        "the global batch into its key (jax.random.fold_in), for example lax.axis_index(axis_name) * b + arange(b).",
    ),
    "other random numbers": (
        "masks that change with the number of devices",
        "{leaves}: the step draws other random numbers than the reference, as when each device folds its own number "
        "into the key, so that they change with the number of devices. Fold the index of the example in the global "
        "batch into its key (jax.random.fold_in), in both.",
    ),
    "key stands still": (
        "a key that does not advance",
        "The same random numbers are drawn in every update. Fold the update's number into the key "
        "(jax.random.fold_in(key, state.step)); if your loop passes a new key every time, give verify "
        "key=lambda update: jax.random.fold_in(key, update).",
    ),
    "dropped": (
        "examples dropped",
        "Examples {dropped} have no influence on the update: they are dropped. Let every example reach one device, "
        "and pad a batch that does not divide with examples of weight 0.",
    ),
    "counted twice": (
        "examples counted more than once",
        "Examples {twice} count {times} times as much as the others. Let every example reach exactly one device; if "
        "the batch is filled up with repeated examples, give those weight 0.",
    ),
    "place decides": (
        "the place of an example decides its weight",
        "Examples count unequally: from {low} (example {lightest}) to {high} (example {heaviest}) times the median. "
        "The step weights by device or by place in the batch: give every valid example the same weight.",
    ),
    "order": (
        "the order of examples matters",
        "{leaves}: the result changes when the same examples come in another order, and the reference's does not. "
        "Something depends on the device or on the place in the batch: local statistics, operations before the "
        "all-reduce, or values of one device.",
    ),
    "one device's metrics": (
        "metrics of one device",
        "{leaves}: these are the metrics of one device's examples, reported as those of the batch. All-reduce them: "
        "lax.psum for sums and counts, lax.pmean for means over equal numbers of examples.",
    ),
    "scaled metrics": (
        "metrics summed or divided once too often",
        "{leaves}: the metric is {ratio} times that of the whole batch on {N} devices. Use lax.pmean for means and "
        "lax.psum for sums.",
    ),
    "key not returned": (
        "a key in the state that does not advance",
        "{leaves}: the step returns the old key, and the reference a new one. Return the new one, or every update "
        "draws the same random numbers.",
    ),
    "every device computes everything": (
        "every device computes the whole batch",
        "A device makes {ratio:.0%} of the floating-point operations of the whole batch; its part would be {part:.0%}. "
        "The batch is not split: {placed}. Place it with "
        "jax.device_put(batch, NamedSharding(mesh, PartitionSpec('data'))), or give in_shardings or in_specs.",
    ),
    "recompilation": (
        "recompilation at every step",
        "The step is compiled again in update {update}. {why}",
    ),
    "transfer": (
        "an implicit transfer at every step",
        "The step moves an array at every call ({what}). Place all arguments and constants once, with jax.device_put "
        "and the sharding that the step wants.",
    ),
    "used after donation": (
        "donated memory used again",
        "The memory of this array was donated to an update and is read afterwards. Use what the step returns, copy "
        "before donating (jax.numpy.copy), or leave donate_argnums out.",
    ),
    "follows": ("", "This follows from the wrong update above."),
    "unknown": (
        "",
        "{leaves}: no cause that verify knows explains the difference. Compare loss and gradient with the reference, "
        "one after the other, for the first leaf, "
        "and first without random numbers, batch norm and clipping.",
    ),
}


Cause = tuple[str, str]  # its name, and its sentence with what was found


def named(cause: str, leaves: list[str], **found) -> Cause:
    """A cause and its sentence."""
    return cause, sentence(cause, leaves, **found)


def sentence(cause: str, leaves: list[str] | None = None, **found) -> str:
    """The sentence of a cause, with what was found; of many leaves the first three."""
    names = ", ".join((leaves or [])[:3]) + (f" and {len(leaves) - 3} more" if leaves and len(leaves) > 3 else "")
    return CAUSES[cause][1].format(leaves=names, **found)


def ranges(numbers: list[int]) -> str:
    """Sorted numbers in words: `3, 8 to 15`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
