"""`python -m pmapdp.port` finds each construct of pmap in its line, under any name, and says how to verify the step."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pmap_programs import FOLDER, NAMES

from pmapdp import cli
from pmapdp.port.__main__ import main, report_program
from pmapdp.port.find import BY_NAME, STATUS, find, is_missing
from pmapdp.port.read import read_program

ROOT = Path(__file__).parents[2]


def found(tmp_path: Path, **sources: str) -> list[str]:
    """`line row` of what is found in the files, in order; other files than main begin with their name."""
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    findings, _ = find(read_program(str(tmp_path))[0])
    return [f"{Path(path).stem} {line} {row}".removeprefix("main ") for path, line, row, _ in findings]


MAPPED = "import jax\np = jax.pmap(lambda x: x, 'i')\n"  # two lines, with a pmap in line 2
PMAPS = [
    ("import jax as j\nj.pmap(f, axis_name='i')", "2 pmap"),
    ("from jax import pmap as p\np(f, 'i')", "2 pmap"),
    ("import jax\npmap = jax.pmap\npmap(f, 'i')", "2 pmap, 3 pmap"),
    ("import jax\n@jax.pmap\ndef f(x):\n    return x", "2 pmap"),
    ("import jax, functools\n@functools.partial(jax.pmap, axis_name='i')\ndef f(x): return x", "2 pmap"),
    ("import jax\nfrom functools import partial\np = partial(jax.pmap, axis_name='i')\np(f)", "3 pmap, 4 pmap"),
    ("import equinox as eqx\n@eqx.filter_pmap(axis_name='i')\ndef f(x): return x", "2 filter-pmap"),
    ("import chex\nfrom flax import nnx\nnnx.pmap(f, axis_name='i')\nchex.fake_pmap()", "3 nnx-pmap, 4 fake-pmap"),
    ("import jax\njax.pmap(f, 'i', in_axes=(None, 0), out_axes=None)", "2 axes-none, 2 pmap"),
    ("import jax\njax.pmap(f, **options)", "2 pmap"),
    ("import jax\njax.pmap(f, 'i', in_axes=(0, 1))", "2 axes-one, 2 in-axes, 2 pmap"),
    ("import jax\njax.pmap(f, 'i', in_axes=-1)", "2 axes-negative, 2 in-axes, 2 pmap"),
    ("import jax\njax.pmap(f, 'i', static_broadcasted_argnums=(1,), devices=d)", "2 devices, 2 pmap, 2 static"),
    ("import jax\njax.pmap(f, 'i', axis_size=8, global_arg_shapes=s)", "2 axis-size, 2 global-shapes, 2 pmap"),
    ("import jax\njax.pmap(jax.pmap(f, 'i'), 'j')", "2 nested, 2 pmap"),
    ("import jax\ns = jax.shard_map(f, mesh=m, in_specs=p, out_specs=p)\njax.pmap(s)", "3 nested, 3 pmap"),
    ("try:\n    from jax import linear_util\nexcept ImportError:\n    linear_util = None\n", ""),
    ("import jax\ndef f(w):\n  return jax.lax.pmean(jax.grad(g)(w), 'i')\njax.shard_map(f, mesh=m)", "4 check-vma"),
    ("import jax\ndef f(w):\n  return jax.lax.pmean(jax.grad(g)(w), 'i')\njax.shard_map(f, check_vma=False)", ""),
    ("import jax\ndef f(w):\n  return jax.lax.pmean(jax.vmap(g)(w), 'i')\njax.shard_map(f, mesh=m)", ""),
]  # fmt: skip
LINES = [
    ("y = jax.lax.psum(x, axis_name='i')", ["psum"]),
    ("y = jax.lax.psum(1, 'i')", ["psum-one"]),
    ("y = jax.lax.psum(x, 'an axis of vmap')", []),
    ("y = jax.lax.psum(grads, 'i')", ["psum-gradients"]),
    ("y = jax.lax.all_gather(x, 'i', axis_index_groups=g)", ["all-gather", "axis-groups"]),
    ("k = jax.random.fold_in(k, jax.lax.axis_index('i'))", ["fold-in", "axis-index"]),
    ("k = jax.random.fold_in(k, jax.process_index())", ["host-key"]),
    ("k = jax.random.split(k, jax.local_device_count())", ["prng-key"]),
    ("k = jax.random.split(k, n_devices)", ["prng-key"]),
    ("k = jax.random.split(k, 2)", []),
    ("n = len(jax.local_devices()); x = x.reshape(n, -1)", ["shard"]),
    ("import jax.numpy as jnp; x = jnp.stack([x] * jax.device_count())", ["replicate"]),
    ("from flax.training import common_utils as c; c.shard(c.get_metrics(b))", ["shard", "get-metrics"]),
    ("import flax.linen as nn; nn.BatchNorm(axis_name='i')", ["batch-norm"]),
    ("import haiku as hk; hk.BatchNorm(True, True, 0.9, cross_replica_axis='i')", ["batch-norm"]),
    ("v = scale.value_and_grad(loss, axis_name='i')", ["dynamic-scale"]),
    ("v = scale.value_and_grad(loss)", ["scale-without-axis"]),
    ("from flax.optim import dynamic_scale", ["moved-scale"]),
    ("k = jax.random.split(k, 4 * n_devices).reshape(n_devices, -1)", ["prng-key"]),
    ("b = batch_size // jax.process_count()", ["hosts"]),
    ("epoch = int(steps * jax.process_count() / len(data)); first = offset // jax.process_count()", []),
    ("y = p(x); z = y['loss'][0]", ["first-copy"]),
    ("y = jax.tree_util.tree_map(lambda x: x[0], p(x))", ["first-copy"]),
    ("y = jax.tree.map(lambda x: x[0], batch)", []),
    ("def unreplicate(tree): return jax.tree.map(lambda x: x[0], tree)", ["first-copy"]),
    ("q = jax.pmap(lambda x: (x, x), 'i'); y, z = q(x); y[0]", ["pmap", "first-copy"]),
    ("y = p(x); z = y.params['w'][0]", ["first-copy"]),
    ("y = p(x); z = y.mean(1)[0]", []),
    ("import jax.numpy as jnp; x = jnp.repeat(x[None], n_devices, 0)", ["replicate"]),
    ("y = x.device_buffers", ["device-buffers"]),
    ("jax.shard_map(f, check_rep=False)", ["check-rep"]),
    ("jax.config.update('jax_pmap_shmap_merge', False)", ["old-flag"]),
    ("def f(pmap): return pmap(x)", []),
    ("z = z[0]; f = jax.vmap(f); q = jax.pmap(f, 'i')", ["pmap"]),  # defined by themselves
    ("def save(state): return jax.tree_map(lambda x: x[0], state)", ["first-copy", "tree-map"]),
    ("from flax import optim; optim.Adam()", ["old-optimizer"]),
    ("from jax.config import config; config.update('jax_enable_x64', True)", ["old-config"]),
    ("import jax.numpy as jnp; jnp.msort(x)", ["gone"]),
    ("from jax.lib import xla_bridge", ["gone"]),
    ("if hasattr(jax, 'tree_map'): jax.tree_map(f, x)", []),
]  # fmt: skip


@pytest.mark.parametrize(("source", "wanted"), PMAPS)
def test_pmap_under_every_name(tmp_path, source, wanted):
    assert ", ".join(sorted(found(tmp_path, main=source))) == wanted


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_a_line(tmp_path, line, wanted):
    assert sorted(found(tmp_path, main=MAPPED + line)) == sorted(["2 pmap", *(f"3 {row}" for row in wanted)])


def test_every_name_of_the_table_is_found(tmp_path):
    names = [name for name in BY_NAME if not name.startswith("?")]
    source = "import chex, equinox, flax, jax\n" + "\n".join(f"{name}(x)" for name in names)
    lines = found(tmp_path, main=source)
    assert [name for n, name in enumerate(names, 2) if f"{n} {BY_NAME[name]}" not in lines] == []


def test_names_are_followed_from_file_to_file(tmp_path):
    tools = "import jax\nAXIS = 'i'\np = jax.pmap\nq = jax.pmap(f, axis_name=AXIS)\n"
    main_file = "from tools import q, AXIS\nimport tools as t\nfrom jax import lax\nq(x)[1][0]\n"
    main_file += "t.p(f, AXIS)\nlax.pmean(x, AXIS)"
    wanted = ["4 first-copy", "5 pmap", "6 pmean", "tools 3 pmap", "tools 4 pmap"]
    assert found(tmp_path, tools=tools, main=main_file) == wanted
    (tmp_path / "unrelated.py").write_text("import jax\njax.tree_map")
    findings, _ = find(read_program(str(tmp_path / "main.py"))[0])  # a file, with the files that it imports
    assert [f"{Path(path).stem} {line} {row}".removeprefix("main ") for path, line, row, _ in findings] == wanted


def test_collectives_of_other_maps_and_programs_without_pmap_are_left_out(tmp_path):
    other = "import jax\ndef f(x):\n    return jax.lax.psum(x, 'v')\njax.vmap(f, axis_name='v')\n"
    assert found(tmp_path, other=other) == found(tmp_path, other=other.replace("vmap", "shard_map")) == []
    assert found(tmp_path, other=other, main=MAPPED) == ["2 pmap"]
    assert found(tmp_path, other=other.replace("'v'", "'i'"), main=MAPPED) == ["2 pmap", "other 3 psum"]


KINDS = {  # the kinds of public programs that were tried, cut small: source, findings, harness or question
    "a Linen trainer with batch statistics and a loss scale": (
        """import jax
from flax import optim
scale = optim.DynamicScale()
def train_step(state, batch):
    grads = jax.lax.pmean(jax.grad(loss)(state.params, state.batch_stats, batch), "batch")
    return state.apply_gradients(grads), {"loss": loss}
def save(state):
    return jax.tree_map(lambda x: x[0], state)
p_step = jax.pmap(train_step, axis_name="batch")
state, metrics = p_step(state, batch)""",
        "2 old-optimizer, 3 moved-scale, 5 pmean, 8 first-copy, 8 tree-map, 9 pmap",
        ('"per_device": ["batch_stats"]', "from main import train_step", 'one_device(step, "batch")'),
    ),
    "a Haiku experiment as a class": (
        """import jax
class Experiment:
    def __init__(self):
        self._update = jax.pmap(self._step, axis_name="i")
    def _step(self, state, inputs):
        return jax.tree.map(lambda x: jax.lax.pmean(x, "i"), state), {}
    def step(self):
        self._state, scalars = self._update(self._state, inputs)
        return scalars["loss"][0]""",
        "4 pmap, 6 pmean, 9 first-copy",
        "Where can _step be imported from?",
    ),
    "a trainer on shard_map and pmap": (
        """import jax
from jax.experimental.shard_map import shard_map
def build(mesh):
    def train_step(state, batch):
        return state.apply_gradients(jax.lax.pmean(grads, "data"))
    mapped = shard_map(train_step, mesh=mesh, in_specs=specs, out_specs=specs)
    return jax.pmap(mapped)""",
        "6 check-vma, 6 old-shard-map, 7 nested, 7 pmap",
        None,
    ),
    "partials, accumulation, a key for each device": (
        """import jax
from functools import partial
def train_step(model, state, batch, key, lr):
    return state - lr * jax.lax.psum(model.grad(batch), "b"), {}
def main(model, state, key, offset):
    p_step = jax.pmap(partial(train_step, model=model, lr=0.1), axis_name="b")
    first = offset * jax.process_index() // jax.process_count()
    state, metrics = p_step(state=state, batch=batch, key=jax.random.split(key, jax.local_device_count()))""",
        "4 psum-gradients, 6 pmap, 8 prng-key",
        "pmap maps a partial, a loop or a vmap around train_step",
    ),
    "a decorated step with parameters, moments and metrics apart": (
        """import functools, jax
@functools.partial(jax.pmap, axis_name="batch")
def update(params, moments, images, labels):
    loss, grads = jax.lax.pmean(jax.value_and_grad(f)(params), "batch")
    return params, moments, loss
params, moments, loss = update(params, moments, images, labels)
print(loss[0])""",
        "2 pmap, 4 pmean, 7 first-copy",
        "Put a function of (state, batch, key) around it",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kinds_of_public_programs(tmp_path, kind):
    source, wanted, need = KINDS[kind]
    assert ", ".join(sorted(found(tmp_path, main=source))) == wanted
    verify = report_program(str(tmp_path))["verify"]
    if need is None:
        assert verify is None
    elif isinstance(need, str):
        assert (verify["harness"], any(need in each for each in verify["questions"])) == ("", True)
    else:
        compile(verify["harness"], kind, "exec")
        assert [each for each in need if each not in verify["harness"]] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_programs_of_tests(name):
    report = report_program(str(FOLDER / f"{name}.py"))
    assert {each["status"] for each in report["lines"]} <= {"fine", "slow", "check"}  # they run
    assert {"pmap", "filter-pmap"} & {each["construct"] for each in report["lines"]}
    verify = report["verify"]
    assert bool(verify["harness"]) != bool(verify["questions"])
    has_harness = name in ("hugging_face_tokens", "linen_dynamic_scale")
    assert bool(verify["harness"]) == has_harness  # the others keep their state in several arguments


SMALL = """import jax
from jax import lax
def train_step(w, batch):
    loss, grad = jax.value_and_grad(lambda w: ((batch @ w) ** 2).mean())(w)
    return w - 0.1 * lax.pmean(grad, "i"), lax.pmean(loss, "i")
def main(w, batch):
    w, loss = jax.pmap(train_step, axis_name="i")(w, batch)
"""


def test_the_harness_runs_and_finds_a_sum_in_place_of_a_mean(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    path, names = tmp_path / "small_pmap_program.py", dict[str, Any]()
    path.write_text(SMALL.replace("pmean(grad", "psum(grad"))
    exec(report_program(str(path))["verify"]["harness"], names)
    names["check"](np.ones(3, np.float32), np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32))
    assert "8 times as large" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_no_false_line_on_our_own_package():
    report = report_program(str(ROOT / "pmapdp"))
    assert report["unread"] == []
    assert [each for each in report["lines"] if each["status"] not in ("fine", "check")] == []
    assert {"pmap", "pmean", "axes-none"} <= {each["construct"] for each in report["lines"]}


def test_names_that_are_gone_are_gone_and_others_are_not():
    for name, row in BY_NAME.items():
        if name.split(".")[0] in ("jax", "flax"):
            assert is_missing(name) == (STATUS[row] == "gone") or name == "jax.config.config", name
    assert is_missing("jax.numpy.msort")


def run(capsys, *arguments) -> tuple[int, str, str]:
    status = cli.run(main, [str(each) for each in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_status_1_if_a_line_fails_and_fine_lines_only_with_all(tmp_path, capsys):
    path = tmp_path / "old.py"
    path.write_text("import jax\nraise SystemExit('this is never run')\njax.tree_map(f, jax.pmap(f, 'i')(x))\n")
    status, out, err = run(capsys, path)
    assert (status, err.count("\n")) == (1, 1)
    assert f"first {path}:3 (tree-map): gone" in err
    assert "  gone   tree-map" in out
    assert "docs/porting.md#tree-map" in out
    assert "fine   pmap" not in out
    assert "fine   pmap" in run(capsys, path, "--all")[1]
    path.write_text("x = 1\n")
    assert run(capsys, path) == (0, "No construct of pmap was found.\n", "")
    path.write_text("import jax\nx = " + " + ".join(["y"] * 3000) + "\njax.tree_map(f, x)\n")
    assert "3  gone   tree-map" in run(capsys, path)[1]


def test_json_is_one_object(capsys):
    status, out, _ = run(capsys, FOLDER / "accumulation.py", "--json")
    report = json.loads(out)
    assert status == 0
    assert set(report["lines"][0]) == {
        "path", "line", "construct", "code", "status", "today", "shard_map", "jit", "link",
    }  # fmt: skip
    assert report["mapped"][0].endswith("update_fn")


def test_a_notebook_and_files_that_do_not_parse(tmp_path, capsys):
    cells = [
        {"cell_type": "markdown", "source": ["jax.pmap"]},
        {"cell_type": "code", "source": ["%time\n", "!ls\n", "import jax\n", "p = jax.pmap(f, 'i')"]},
        {"cell_type": "code", "source": ["%%bash\n", "ls -l | wc"]},
        {"cell_type": "code", "source": "jax.tree_map(f,\n x)"},
    ]  # fmt: skip
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "b.py").write_text("import jax\nprint 'old'\n")
    (tmp_path / "c.ipynb").write_text("{}")
    (tmp_path / "d.py").write_bytes(bytes(range(256)))
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "e.py").write_text("import jax\njax.tree_map")
    status, out, err = run(capsys, tmp_path, "--all")
    assert status == 1
    assert "cell 2 line 4  fine   pmap" in out
    assert "cell 4 line 1  gone   tree-map" in out
    for name in ("b.py", "c.ipynb", "d.py"):
        assert f"{tmp_path / name} can't be read" in out
        status, said, err = run(capsys, tmp_path / name)  # the one file that was named
        assert (status, said, err.count("\n")) == (2, "", 1)
        assert "can't be read" in err
    assert "hidden" not in out + err


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda path: path / "no.py", "is no Python file, notebook or folder"),
        (lambda path: path, "holds no Python"),
        (lambda path: (path / "a.txt").write_text("") or path / "a.txt", "is no Python file, notebook or folder"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, capsys, make, fragment):
    status, out, err = run(capsys, make(tmp_path))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert fragment in err
