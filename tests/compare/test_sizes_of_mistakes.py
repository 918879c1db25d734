"""The mistakes on compare's page: their lines run, and are as far off as the page says.

They are in float64, so that nothing but a mistake makes a difference.
"""

import functools
import textwrap
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding

from pmapdp.compare.page import load_data

N = 8
D = 6  # features
H = 5  # hidden units
b = 6  # examples on a device
EQUAL = 1e-9  # relative; less is rounding
TABLES = load_data("mistakes.toml")["mistakes"]
MISTAKES = {table["name"]: SimpleNamespace(**table) for table in TABLES}


class Result(NamedTuple):
    """The result of a mistake's lines, beside one device's.

    loss, gradient: the relative difference, on the device that's farthest off.
    factor: how many times as long the gradient is along the expected one.
    agree: all devices have the same.
    """

    loss: float
    gradient: float
    factor: float
    agree: bool


def error(params, hidden, batch):
    """Return the squared error of each example, `[b]`."""
    return jnp.square(jnp.tanh(hidden) @ params["W2"] - batch["y"])


def clip(gradient):
    """Shorten a gradient to a length of at most 0.1."""
    length = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda leaf: leaf * jnp.minimum(1, 0.1 / length), gradient)


NAMES = {
    "jax": jax,
    "jnp": jnp,
    "lax": lax,
    "functools": functools,
    "error": error,
    "clip": clip,
}


def make_program(body, **names):
    """Make a function of (params, batch, key) from its body."""
    namespace = {**NAMES, **names}
    code = textwrap.indent(body.strip(), "    ")
    exec(f"def program(params, batch, key):\n{code}", namespace)
    return namespace["program"]


def make_example():
    """Make parameters, a batch of N * b examples, and a key.

    The devices' examples are unlike, and only one of the last device's counts.
    """
    random = np.random.default_rng(0)
    params = {"W1": random.normal(size=(D, H)), "W2": random.normal(size=H)}
    x = random.normal(size=(N * b, D)) + np.linspace(-1, 1, N * b)[:, None]
    batch = {
        "x": x,
        "y": np.sin(x.sum(1)),
        "index": np.arange(N * b),
        "weight": (np.arange(N * b) <= (N - 1) * b).astype(float),
    }
    return params, batch, jax.random.key(0)


def compare_results(stacked, expected):
    """Compare loss and gradient of each device, in leaves `[N, ...]`, with one's."""
    errors = []
    agree = True
    for result, wanted in zip(jax.device_get(stacked), expected, strict=True):
        reference, _ = ravel_pytree(wanted)
        rows = jax.vmap(lambda tree: ravel_pytree(tree)[0])(result)  # [N, numbers]
        distances = jnp.linalg.norm(rows - reference, axis=1)
        errors.append(float(distances.max() / jnp.linalg.norm(reference)))
        factor = float(rows[0] @ reference / (reference @ reference))
        agree = agree and np.allclose(rows, rows[:1], rtol=EQUAL)
    return Result(*errors, factor, agree)


def run_lines(mistake, lines, check_vma):
    """Run lines under shard_map, and compare them with one device's.

    Without its check it's the program that pmap makes.
    """
    example = make_example()
    one_device = make_program(mistake.one_device)
    program = make_program(lines, one_device=one_device)

    def stacked(*arguments):  # so that each device's result can be read
        return jax.tree.map(lambda x: x[None], program(*arguments))

    mapped = jax.shard_map(
        stacked,
        mesh=Mesh(np.array(jax.devices()[:N]), ("data",)),
        in_specs=(P(), P("data"), P()),
        out_specs=P("data"),
        check_vma=check_vma,
    )
    return compare_results(jax.jit(mapped)(*example), jax.jit(one_device)(*example))


def describe(result):
    """Say if a mistake's result is `equal`, or how far off: `gradient 31.0% off`."""
    wrong = []
    for name, error in (("loss", result.loss), ("gradient", result.gradient)):
        if error > EQUAL:
            wrong.append(f"{name} {error:.1%} off")
    text = ", ".join(wrong) or "equal"
    # A gradient that only has another length differs by factor - 1.
    points_alike = abs(result.factor - 1 - result.gradient) < EQUAL
    if result.loss <= EQUAL < result.gradient and points_alike:
        text = f"gradient \u00d7 {result.factor:.3g}"
    if not result.agree:
        text += "; different on each device"
    return text


def test_there_are_nine_and_the_usual_ones_come_first():
    assert [*MISTAKES][:2] == ["A forgotten average", "A sum in place of the mean"]
    assert len(MISTAKES) == len(TABLES) == 9
    assert sum("ddp" in mistake for mistake in TABLES) == 3
    for mistake in TABLES:
        assert mistake["why_wrong"]
        assert mistake["why_right"]
        assert mistake["wrong"] != mistake["right"] or mistake["check_vma"]


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_lines_are_off_as_the_page_says_and_correct_ones_are_not(name):
    mistake = MISTAKES[name]
    with jax.enable_x64(True):
        wrong = run_lines(mistake, mistake.wrong, hasattr(mistake, "check_vma"))
        right = run_lines(mistake, mistake.right, False)
    assert describe(wrong) == mistake.size
    assert describe(right) == "equal"


@pytest.mark.parametrize("name", MISTAKES)
def test_one_device_s_lines_are_correct_under_jit(name):
    with jax.enable_x64(True):
        params, batch, key = make_example()
        program = jax.jit(make_program(MISTAKES[name].one_device))
        expected = program(params, batch, key)
        mesh = Mesh(np.array(jax.devices()[:N]), ("data",))
        split = jax.device_put(batch, NamedSharding(mesh, P("data")))
        result = jax.tree.map(lambda x: x[None], program(params, split, key))
        assert describe(compare_results(result, expected)) == "equal"


def test_the_lines_of_a_mistake_do_the_same_under_pmap():
    mistake = MISTAKES["A forgotten average"]
    with jax.enable_x64(True):
        params, batch, key = make_example()
        program = make_program(mistake.one_device)
        rows = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)
        mapped = jax.pmap(
            program, "data", in_axes=(None, 0, None), devices=jax.devices()[:N]
        )
        result = compare_results(mapped(params, rows, key), program(params, batch, key))
    assert describe(result) == mistake.size
