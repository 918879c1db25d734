"""Only there because a CPU is slow at it, for simulated devices. Accelerators run none of it."""
