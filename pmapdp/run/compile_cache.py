"""Keep compiled programs on the disk, so that the next run starts sooner."""

import contextlib
import os
import warnings
from pathlib import Path

import jax


def keep_compiled_programs() -> None:
    """Let JAX keep programs in `~/.cache/pmapdp/compiled`, or in the folder you set."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        # Some containers have no home, and JAX would warn of each program.
        with contextlib.suppress(OSError, RuntimeError):
            caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
            cache = Path(caches, "pmapdp", "compiled")
            cache.mkdir(parents=True, exist_ok=True)
            jax.config.update("jax_compilation_cache_dir", str(cache))
    # Two processes that write the same entry make JAX warn, but the cache is optional.
    warnings.filterwarnings(
        "ignore", "Error (reading|writing) persistent compilation cache entry"
    )
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
