"""`python -m benchmarks.scaling`: the predictions beside what this machine can show."""

from pathlib import Path

import numpy as np
import pytest
from launch import python

from benchmarks.scaling import checks
from benchmarks.scaling.fit import fit, leave_out, shared_memory_terms
from benchmarks.workers import WorkerError


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("cnn", "pmap"),
        ("convnet", "shard_map"),
        ("text_mlp", "shard_map"),
    ],
)
def test_collectives_of_a_program_for_512_devices_are_predicted(model, strategy):
    """Exactly; of batch norm XLA drops exchanges that it finds twice, less than a thousandth of the bytes."""
    count, size = checks.check_compiled(model, strategy, counts=(512,))
    assert count.error == 0
    assert count.found == {"convnet": 7, "text_mlp": 3}.get(model, 1)
    assert size.error == 0 or (model == "convnet" and 0 < size.error < 1e-3)


@pytest.mark.slow
def test_simulated_devices_are_measured_and_predicted():
    """Only that all is compared: a busy machine makes any error large."""
    lines = checks.check_simulated("mlp", (2, 3), repeats=2)
    assert [sum(words in line.what for line in lines) for words in ("all-reduce", "whole step")] == [12, 2]
    assert all(line.found > 0 and line.predicted > 0 and np.isfinite(line.error) for line in lines)


def test_published_runs_are_predicted_within_five_percent_while_computing_rules():
    goyal, tf32, mixed = checks.check_published()
    assert goyal.found == 0.9
    assert abs(goyal.error) < 0.05
    assert abs(tf32.error) < 0.05
    assert 0.15 < mixed.error < 0.2  # what slows eight GPUs there is not the all-reduce


@pytest.mark.slow
def test_the_page_has_the_error_of_each_prediction():
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    for line in checks.check_published():
        assert f"| {line.what} | {line.predicted:.3f} | {line.found:.3f} | {100 * line.error:+.1f} % |" in page
    for line in checks.check_compiled("cnn", counts=(8,)):
        assert f"| {line.what} | {line.predicted:,.0f} | {line.found:,.0f} | {100 * line.error:+.1f} % |" in page


def test_a_failing_check_is_one_sentence():
    with pytest.raises(WorkerError, match=r"^4096 devices cannot be simulated"):
        checks.result("compiled", "mlp", "jit", 4096)


def test_a_fit_finds_the_constants_that_made_the_times():
    unknowns = 5e-5, 3e-5, 2e-10
    rows = [
        {"devices": N, "bytes": n, "seconds": float(np.dot(unknowns, shared_memory_terms(N, n)))}
        for N in (2, 4, 8)
        for n in (1e4, 1e5, 1e6, 1e7)
    ]
    np.testing.assert_allclose(fit(rows), unknowns, rtol=1e-6)
    np.testing.assert_allclose(leave_out(rows), [row["seconds"] for row in rows], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.night
def test_the_command():
    done = python("-m", "benchmarks.scaling", "mlp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("median error") == 3
