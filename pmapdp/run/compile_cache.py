"""JAX's persistent cache of compiled programs, so that a second start need not compile again."""

import hashlib
import os
import platform
from pathlib import Path

import jax


def machine() -> str:
    """A short name for this kind of CPU: a program compiled for another may use instructions that are not here."""
    description = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        description += next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    return hashlib.sha256(description.encode()).hexdigest()[:12]


def enable() -> None:
    """Keep compiled programs, small ones too, in `~/.cache/pmapdp/compiled`; a folder the user has set stays."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(cache / "pmapdp" / "compiled" / machine()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
