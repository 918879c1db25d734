"""JAX's persistent cache of compiled programs, so that a second start need not compile again."""

import os
import warnings
from pathlib import Path

import jax


def enable() -> None:
    """Keep compiled programs, small ones too, in `~/.cache/pmapdp/compiled`; a folder the user has set stays."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pmapdp" / "compiled"
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError:  # a run needs no cache, and JAX would warn of each program
            return
        jax.config.update("jax_compilation_cache_dir", str(cache))
    # Nor does a run need an entry that another process is about to write, or was killed while it wrote.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
