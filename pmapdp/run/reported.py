"""The figures of a recipe's source beside those of a run."""

from typing import Any

from pmapdp.config import Config
from pmapdp.recipes import RECIPES


def compare_with_reported(config: Config, epochs: list[dict[str, Any]]) -> list[str]:
    """Lines of the figures that the recipe's source reports beside those of a run's epochs, as far as it got; none
    where it trained something else than the recipe does."""
    recipe = RECIPES[config.recipe]
    if any(getattr(config, name) != getattr(recipe.config, name) for name in ("dataset", "model", "epochs")):
        return []
    here = {epoch["epoch"]: epoch for epoch in epochs}
    rows = [(figure, here.get(figure.epoch or config.epochs)) for figure in recipe.reported]
    table = [f"{figure.name:<60}{figure.value:9.4f}{epoch[figure.key]:11.4f}" for figure, epoch in rows if epoch]
    return ["", f"{'reported':>69}{'here':>11}", *table] if table else []
