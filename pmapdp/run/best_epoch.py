"""Which epoch is the best, by `--best`, and whether a run ends because none was better for long, by `--patience`."""

from typing import Any


def chosen_metric(results: dict[str, Any], best: str | None) -> tuple[str, str]:
    """Which epoch is the best: `highest` or `lowest`, and of which key of the results. Of the validation set where
    there is one, else of the test set, else of the training set.

    Args:
        results: of an epoch.
        best: the setting `--best`; with None it is the highest accuracy, or the lowest loss where there is none.
    """
    part = next(part for part in ("validation", "test", "train") if f"{part}_loss" in results)
    usual = "highest:accuracy" if f"{part}_accuracy" in results else "lowest:loss"
    order, _, name = (best or usual).partition(":")
    return order, f"{part}_{name}"


def better(results: dict[str, Any], than: dict[str, Any], best: str | None) -> bool:
    """Whether an epoch is better than the best so far; `best` as for `chosen_metric`."""
    order, key = chosen_metric(results, best)
    return results[key] > than[key] if order == "highest" else results[key] < than[key]


def ends_early(progress: dict[str, Any], patience: int | None) -> bool:
    """Whether the last epochs, `patience` in number, were no better than the best."""
    return bool(patience and progress["last"] and progress["last"]["epoch"] - progress["best"]["epoch"] >= patience)
