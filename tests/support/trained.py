"""A network after a few updates on the digits, on one device, for the tests of what
comes after training.
"""

from typing import Any

from pmapdp.config import Config
from pmapdp.job import CustomParts, Job, make_job
from pmapdp.state import TrainState, create_state
from pmapdp.steps.placing import fetch


def train_briefly(
    steps: int = 20, *, custom: CustomParts | None = None, **settings: Any
) -> tuple[Job, TrainState]:
    """The job of a configuration with `settings`, and its state (on the host) after
    `steps` updates.
    """
    job = make_job(
        Config(strategy="single", devices=1, learning_rate=5e-3, **settings), custom
    )
    state = job.strategy.place_state(create_state(job.task))
    for batch, _ in zip(job.batches["train"].epoch(0), range(steps), strict=False):
        state, _ = job.strategy.train_step(state, job.strategy.place_batch(batch))
    return job, fetch(state)
