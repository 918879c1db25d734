"""The predictions of `pmapdp.scaling` beside what can be measured on this machine: `python -m benchmarks.scaling`."""
