"""Programs in the style of the pmap era (tests/programs) equal their old selves on 8 groups."""

import jax
import pytest
from pmap_programs import load

from pmapdp.verify import old_program, verify

N = 8
SUM = {'lax.pmean((loss, grads), axis_name="batch")': 'lax.psum((loss, grads), axis_name="batch")'}


def hugging_face_tokens(module):
    """The step, of (state, batch), and the other arguments of `verify`."""
    state = module.create_state()
    state = state.replace(dropout_rng=jax.random.split(state.dropout_rng, N))
    given = {"state": state, "batch": next(module.batches(1, 32)), "per_device": ["dropout_rng"]}
    return module.train_step, given


def accumulation(module):
    def step(state, batch):
        *state, loss = module.update_fn(*state, batch)
        return tuple(state), loss

    return step, {"state": module.init(jax.random.PRNGKey(0)), "batch": next(module.batches(1, 64))}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "changes", "causes"),
    [
        (hugging_face_tokens, {}, []),
        (accumulation, SUM, ["unknown", "scaled metrics"]),  # it clips, which hides the factor
    ],
)
def test_a_program_equals_its_old_self_and_a_sum_in_place_of_a_mean_does_not(program, changes, causes):
    step, given = program(load(program.__name__))
    changed, _ = program(load(program.__name__, changes))
    reference = old_program(step, "batch", groups=N)
    report = verify(**given, step=jax.pmap(changed, "batch"), reference=reference)
    assert report.causes == causes, str(report)
    assert "close" in report.kinds.values(), str(report)
