"""The model of a run, built; or the sentence about a function that builds none."""

from collections.abc import Callable
from typing import Any

from flax import linen, nnx

from pmapdp.errors import UserError, reason, shown
from pmapdp.files import from_first_user_frame
from pmapdp.state import build, takes


def built_model(model: Callable[..., nnx.Module], seed: int, dtype: str) -> nnx.Module:
    """What `model` builds, as `pmapdp.state.build` calls it; a `UserError` says why it cannot, or that it takes no such
    type."""
    kind: Any = model if isinstance(model, type) else type(model)
    if issubclass(kind, linen.Module):
        raise UserError(
            f"model={shown(model)} is a module of Linen: give a function that makes it one of NNX, lambda rngs: "
            "flax.nnx.bridge.lazy_init(flax.nnx.bridge.ToNNX(module, rngs=rngs), one_input)"
        )
    try:
        built = build(model, seed, dtype)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, OSError) and not from_first_user_frame(error):
            raise
        why = "it ends Python" if isinstance(error, SystemExit) else reason(error)
        works = "give a class or function of rngs, and perhaps of dtype and param_dtype"
        if "static attribute" in why:  # of Flax, about layers in a list
            why, works = why.partition("'. ")[0] + "'", "keep layers and arrays in nnx.List or nnx.Dict"
        raise UserError(f"{shown(model)} cannot be built ({why}): {works}") from error
    if not isinstance(built, nnx.Module):
        raise UserError(f"{shown(model)} gives {shown(built)}: give a class or function that makes a flax.nnx.Module")
    if dtype != "float32" and not takes(model, "dtype"):
        raise UserError(
            f"--dtype {dtype} has no effect on {shown(model)}, which takes no dtype: add dtype to its arguments "
            "and give it to its layers, or leave --dtype out"
        )
    return built
