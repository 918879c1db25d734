"""The table of mistakes: the sentence with the cause and the cure of each. docs/verify.md shows it."""

# Name of a cause -> its sentence; in braces what was found.
MISTAKES = {
    "no all-reduce": (
        "{leaves}: every device makes the update of its own examples, because the all-reduce is missing. Average all "
        "gradients in one pytree before the update: lax.pmean(gradients, axis_name)."
    ),
    "sum for mean": (
        "{leaves}: the step moves {ratio} times as far as the reference. Either the gradients are summed over {N} "
        "devices (use lax.pmean in place of lax.psum), or the learning rate is multiplied by the number of devices "
        "(use that of one device)."
    ),
    "check_vma": (
        "{leaves}: the step moves {ratio} times as far as the reference, under check_vma=True. There jax.grad already "
        "sums the gradient of a replicated parameter over the {N} devices, and lax.pmean averages equal sums. "
        "Differentiate lax.pmean(loss) and leave the gradient alone, or set check_vma=False."
    ),
    "averaged twice": (
        "{leaves}: the step moves 1/{N} as far as the reference. The loss or the gradient is divided by the number of "
        "devices, and lax.pmean divides once more. Remove one of the two."
    ),
    "another scale": (
        "{leaves}: the step moves {ratio} times as far as the reference. Compare the learning rate, the division of "
        "the loss (by how many examples?) and the clipping in both."
    ),
    "weight decay": (
        "{leaves}: the difference is {ratio} times the old value, whatever the examples. Apply the weight decay once, "
        "after the all-reduce, with the factor of one device."
    ),
    "mean of means": (
        "{leaves}: the update is the mean of what each device would do with its own examples, and the loss depends on "
        "how the batch is cut. If the devices hold different numbers of valid examples, divide sums: lax.psum(sum of "
        "gradients, axis_name) / lax.psum(count, axis_name). If each device normalises its examples alone, as batch "
        "norm does, average their mean and their mean of squares (lax.pmean; in Flax, axis_name)."
    ),
    "local statistics": (
        "{leaves}: these are the statistics of each device's own examples, or their average. Average the mean and the "
        "mean of squares over the devices (lax.pmean; in Flax, axis_name), then take the variance from them."
    ),
    "nonlinear": (
        "{leaves}: the update is the mean of what each device would do with its own examples, and the loss does not "
        "depend on how the batch is cut. The gradient goes through clipping, normalising or another nonlinear "
        "operation before the all-reduce. Average the gradients first."
    ),
    "same mask": (
        "{leaves}: all devices draw the same random numbers for their own examples. Fold the index of the example in "
        "the global batch into its key (jax.random.fold_in), for example lax.axis_index(axis_name) * b + arange(b)."
    ),
    "other random numbers": (
        "{leaves}: the step draws other random numbers than the reference, as when each device folds its own number "
        "into the key. Fold the index of the example in the global batch into its key (jax.random.fold_in), in both. "
        "To see whether anything else differs, verify without random numbers, for example with a dropout rate of 0."
    ),
    "key stands still": (
        "The same random numbers are drawn in every update. Fold the update's number into the key "
        "(jax.random.fold_in(key, state.step)), or return the new key with the state. If your loop passes a new key "
        "every time, give verify key=lambda update: jax.random.fold_in(key, update)."
    ),
    "dropped": (
        "Examples {dropped} have no influence on the update: they are dropped. Let every example reach one device, and "
        "pad a batch that does not divide with examples of weight 0."
    ),
    "counted unequally": (
        "Examples {heavy} count {ratio} times as much as examples {light}. Let every example reach exactly one device, "
        "weight none by its device or place, and give repeated examples that fill up a batch the weight 0."
    ),
    "order": (
        "{leaves}: the result changes when the same examples come in another order, and the reference's does not. Look "
        "for what depends on the device or on the place in the batch."
    ),
    "drift": (
        "{leaves}: the devices hold different values. Something that belongs to one device enters the update: "
        "gradients or another value without an all-reduce, lax.axis_index, a key of its own, or another initial state. "
        "Average the gradients with lax.pmean, and compute the update from averaged values alone."
    ),
    "one device's metrics": (
        "{leaves}: these are the metrics of one device's examples, reported as those of the batch. All-reduce them: "
        "lax.psum for sums and counts, lax.pmean for means over equal numbers of examples."
    ),
    "scaled metrics": (
        "{leaves}: the metric is {ratio} times that of the whole batch on {N} devices. Use lax.pmean for means and "
        "lax.psum for sums."
    ),
    "every device computes everything": (
        "A device makes {ratio:.0%} of the floating-point operations of the whole batch; its part would be {part:.0%}. "
        "The batch is not split where it is used (verify places it by your layout: {placed}). Place it with "
        "jax.device_put(batch, NamedSharding(mesh, PartitionSpec('data'))), or give in_shardings or in_specs."
    ),
    "recompilation": (
        "The step is compiled again in update {update}. Build the compiled function once, outside the step; pass "
        "numbers that change as arrays and not as static arguments; return the state in the types in which it came."
    ),
    "transfer": (
        "The step moves an array at every call ({what}). Place all arguments and constants once, with jax.device_put "
        "and the sharding that the step wants."
    ),
    "used after donation": (
        "The memory of this array was donated to an update and is read afterwards. Use what the step returns, copy "
        "before donating (jax.numpy.copy), or leave donate_argnums out."
    ),
    "unseen replication": (
        "A result that out_specs calls replicated varies over the devices by its type, as what lax.all_gather returns. "
        "Average it (lax.pmean), gather it with lax.all_gather(..., to='invarying'), or set check_vma=False."
    ),
    "follows": "This follows from a mistake that another check names.",
    "unknown": (
        "{leaves}: no mistake that verify knows explains the difference, or there are several. Compare loss and "
        "gradient with the reference for the first leaf, at first without random numbers, batch norm and clipping."
    ),
}

Cause = tuple[str, str]  # its name in the table, and its sentence with what was found


def named(cause: str, leaves: list[str] | None = None, **found) -> Cause:
    """A cause and its sentence, with what was found; of many leaves the first three are named."""
    leaves = leaves or []
    more = f" and {len(leaves) - 3} more" if len(leaves) > 3 else ""
    return cause, MISTAKES[cause].format(leaves=", ".join(leaves[:3]) + more, **found)
