"""One training run through several layouts, each going on from the checkpoint of the one before."""

import jax
import numpy as np
import pytest

from pmapdp.config import Config
from pmapdp.train import load_run, train


@pytest.mark.slow
def test_data_then_model_then_spatial_then_split_equals_the_run_that_never_changed(tmp_path, capsys):
    def run(name: str, steps: int, **options: str) -> None:
        train(
            Config(
                model="mlp",
                strategy="jit",
                devices=8,
                optimizer="momentum",
                learning_rate=0.1,
                epochs=1,
                steps=steps,
                workdir=str(tmp_path / name),
                compile_cache=False,
                **options,
            )
        )

    run("straight", 12)
    run("changing", 3)
    run("changing", 6, mesh="data=4,model=2", layout="model")
    run("changing", 9, mesh="data=2,feature=2,model=2", layout="spatial")
    run("changing", 12, mesh="data=4,model=2", layout="model", shard_state="parameters")

    printed = capsys.readouterr().out
    assert all(f"restored from the checkpoint of step {step}" in printed for step in (3, 6, 9))
    straight, changing = (load_run(tmp_path / name)[1] for name in ("straight", "changing"))
    assert int(changing.step) == 12
    for a, b in zip(jax.tree.leaves(straight), jax.tree.leaves(changing), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6)
