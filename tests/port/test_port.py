"""`python -m pmapdp.port` finds each construct of pmap in its line, under any name, and says how to verify the step."""

import json
import sys
from pathlib import Path

import jax
import pytest
from marks import quick
from pmap_programs import FOLDER, NAMES, load

from pmapdp import cli
from pmapdp.port.__main__ import main, report_program
from pmapdp.port.find import BY_NAME, LOST, find, is_missing
from pmapdp.port.read import read_program

ROOT = Path(__file__).parents[2]


def found(tmp_path: Path, **sources: str) -> list[str]:
    """`line row` of what is found in the files, in order; those of any file but main begin with its name."""
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    findings, _ = find(read_program(str(tmp_path))[0])
    return [f"{Path(path).stem} {line} {row.id}".removeprefix("main ") for path, line, row, _ in findings]


MAPPED = "import jax\np = jax.pmap(lambda x: x, 'i')\n"  # two lines, with a pmap in line 2
PMAPS = [
    ("import jax\njax.pmap(f, axis_name='i')", "2 pmap"),
    ("import jax as j\nj.pmap(f, axis_name='i')", "2 pmap"),
    ("from jax import pmap as p\np(f, 'i')", "2 pmap"),
    ("import jax\npmap = jax.pmap\npmap(f, 'i')", "2 pmap, 3 pmap"),
    ("import jax\n@jax.pmap\ndef f(x):\n    return x", "2 pmap"),
    ("import jax, functools\n@functools.partial(jax.pmap, axis_name='i')\ndef f(x): return x", "2 pmap"),
    ("import jax\nfrom functools import partial\np = partial(jax.pmap, axis_name='i')\np(f)", "3 pmap, 4 pmap"),
    ("import equinox as eqx\n@eqx.filter_pmap(axis_name='i')\ndef f(x): return x", "2 filter-pmap"),
    ("from flax import nnx\nnnx.pmap(f, axis_name='i')", "2 nnx-pmap"),
    ("import chex\nimport jax\njax.pmap(f, 'i')\nchex.fake_pmap()", "3 pmap, 4 fake-pmap"),
    ("import jax\njax.pmap(f, 'i', in_axes=(None, 0), out_axes=None)", "2 axes-none, 2 pmap"),
    ("import jax\no = {'axis_name': 'i', 'in_axes': None}\njax.pmap(f, **o)", "3 axes-none, 3 pmap"),
    ("import jax\njax.pmap(f, **options)", "2 pmap"),
    ("import jax\njax.pmap(f, 'i', in_axes=(0, 1))", "2 axes-one, 2 in-axes, 2 pmap"),
    ("import jax\njax.pmap(f, 'i', in_axes=-1)", "2 axes-negative, 2 in-axes, 2 pmap"),
    ("import jax\njax.pmap(f, 'i', static_broadcasted_argnums=(1,), devices=d)", "2 devices, 2 pmap, 2 static"),
    ("import jax\njax.pmap(f, 'i', axis_size=8, global_arg_shapes=s)", "2 axis-size, 2 global-shapes, 2 pmap"),
    ("import jax\njax.pmap(jax.pmap(f, 'i'), 'j')", "2 nested, 2 pmap"),
    ("import jax\ndef f(x):\n  return jax.pmap(g, 'i')(x)\njax.pmap(f, 'j')", "3 nested, 3 pmap, 4 pmap"),
    ("import jax\ng = jax.pmap(h, 'i')\ndef f(x):\n  return g(x)\njax.pmap(f, 'j')", "2 pmap, 4 nested, 5 pmap"),
    ("import jax\ns = jax.shard_map(f, mesh=m, in_specs=p, out_specs=p)\njax.pmap(s)", "3 nested, 3 pmap"),
]  # fmt: skip
LINES = [
    ("y = jax.lax.pmean(x, 'i')", ["pmean"]),
    ("y = jax.lax.psum(x, axis_name='i')", ["psum"]),
    ("y = jax.lax.psum(1, 'i')", ["psum-one"]),
    ("y = jax.lax.psum(x, 'an axis of vmap')", []),
    ("y = jax.lax.psum(grads, 'i')", ["psum-gradients"]),
    ("y = jax.lax.pmin(x, 'i')", ["pmax"]),
    ("y = jax.lax.all_gather(x, 'i', axis_index_groups=g)", ["all-gather", "axis-groups"]),
    ("y = jax.lax.ppermute(x, 'i', pairs)", ["ppermute"]),
    ("y = jax.lax.psum_scatter(x, 'i')", ["psum-scatter"]),
    ("y = jax.lax.all_to_all(x, 'i', 0, 0)", ["all-to-all"]),
    ("y = jax.lax.pbroadcast(x, 'i', 0)", ["pbroadcast"]),
    ("k = jax.random.fold_in(k, jax.lax.axis_index('i'))", ["fold-in", "axis-index"]),
    ("k = jax.random.fold_in(k, jax.process_index())", ["host-key"]),
    ("k = jax.random.fold_in(k, 3)", []),
    ("k = jax.random.split(k, jax.local_device_count())", ["prng-key"]),
    ("k = jax.random.split(k, n_devices)", ["prng-key"]),
    ("used = min(jax.local_device_count(), most); k = jax.random.split(k, used)", ["prng-key"]),
    ("k = jax.random.split(k, 2)", []),
    ("x = x.reshape((jax.local_device_count(), -1) + x.shape[1:])", ["shard"]),
    ("n = len(jax.local_devices()); x = x.reshape(n, -1)", ["shard"]),
    ("x = x.reshape(-1, 28)", []),
    ("import jax.numpy as jnp; x = jnp.stack([x] * jax.device_count())", ["replicate"]),
    ("import numpy as np; x = np.broadcast_to(x, (n_devices,) + x.shape)", ["replicate"]),
    ("import flax; s = flax.jax_utils.replicate(s)", ["replicate"]),
    ("from flax import jax_utils as u; s = u.unreplicate(s)", ["unreplicate"]),
    ("from flax.jax_utils import prefetch_to_device as q; q(b)", ["prefetch"]),
    ("from flax.jax_utils import pad_shard_unpad as q; q(p)", ["pad-unpad"]),
    ("from flax.training.common_utils import shard_prng_key as s; s(k)", ["prng-key"]),
    ("from flax.training import common_utils as c; c.shard(c.get_metrics(b))", ["shard", "get-metrics"]),
    ("from flax.training.common_utils import stack_forest; stack_forest(b)", ["stack-forest"]),
    ("import flax.linen as nn; nn.BatchNorm(axis_name='i')", ["batch-norm"]),
    ("import flax.linen as nn; nn.BatchNorm(axis_name=None)", []),
    ("import haiku as hk; hk.BatchNorm(True, True, 0.9, cross_replica_axis='i')", ["batch-norm"]),
    ("v = scale.value_and_grad(loss, axis_name='i')", ["dynamic-scale"]),
    ("v = scale.value_and_grad(loss)", ["scale-without-axis"]),
    ("v = jax.value_and_grad(loss)", []),
    ("from flax.optim import dynamic_scale", ["moved-scale"]),
    ("k = jax.random.split(k, 4 * n_devices).reshape(n_devices, -1)", ["prng-key"]),
    ("jax.debug.callback(print, x)", ["callback"]),
    ("b = batch_size // jax.process_count()", ["hosts"]),
    ("if jax.process_index() == 0: print()", []),
    ("epoch = int(steps * jax.process_count() / len(data)); first = offset // jax.process_count()", []),
    ("from jax.experimental import multihost_utils as m; m.process_allgather(x)", ["gather-hosts"]),
    ("from flax.training import checkpoints; checkpoints.save_checkpoint(d, s, 1)", ["checkpoint"]),
    ("y = p(x)[0]", ["first-copy"]),
    ("y = p(x); z = y[0]", ["first-copy"]),
    ("y = p(x); z = y['loss'][0]", ["first-copy"]),
    ("y = p(x); z = y[1]", []),
    ("y = jax.device_get(p(x)); z = y[0]", []),
    ("y = jax.tree_util.tree_map(lambda x: x[0], p(x))", ["first-copy"]),
    ("y = jax.tree.map(lambda x: x[0], batch)", []),
    ("def unreplicate(tree): return jax.tree.map(lambda x: x[0], tree)", ["first-copy"]),
    ("q = jax.pmap(lambda x: (x, x), 'i'); y = q(x)[0]", ["pmap"]),  # a part of the result, and no row
    ("q = jax.pmap(lambda x: (x, x), 'i'); y, z = q(x); y[0]", ["pmap", "first-copy"]),
    ("q = jax.pmap(f, 'i', out_axes=None); y = q(x); y[0]", ["axes-none", "pmap"]),
    ("y = p(x); n = y.shape[0]; z = y.addressable_shards[0]", []),
    ("y = p(x); z = y.params['w'][0]", ["first-copy"]),
    ("y = p(x); z = y.mean(1)[0]", []),
    ("import jax.numpy as jnp; x = jnp.repeat(x[None], n_devices, 0)", ["replicate"]),
    ("import jax.numpy as jnp; x = jnp.array(devices)", []),
    ("import tools; tools.pmap(f, devices=d)", []),
    ("y = x.device_buffers", ["device-buffers"]),
    ("jax.shard_map(f, check_rep=False)", ["check-rep"]),
    ("from jax.experimental.shard_map import shard_map; shard_map(f)", ["old-shard-map"]),
    ("jax.config.update('jax_pmap_shmap_merge', False)", ["old-flag"]),
    ("jax.config.update('jax_enable_x64', True)", []),
    ("def f(pmap): return pmap(x)", []),
    ("jax.tree_map(f, x)", ["tree-map"]),
    ("def save(state): return jax.tree_map(lambda x: x[0], state)", ["first-copy", "tree-map"]),
    ("s = jax.device_put_replicated(s, d)", ["put-replicated"]),
    ("s = jax.device_put_sharded(s, d)", ["put-sharded"]),
    ("def f(key: jax.random.KeyArray): pass", ["key-array"]),
    ("import jax.numpy as jnp; isinstance(x, jnp.DeviceArray)", ["device-array"]),
    ("from jax.experimental import host_callback as hcb; hcb.id_print(x)", ["host-callback"]),
    ("from flax import optim; optim.Adam()", ["old-optimizer"]),
    ("from jax.config import config; config.update('jax_enable_x64', True)", ["old-config"]),
    ("from jax.experimental.maps import xmap; xmap(f)", ["xmap"]),
    ("jax.xla_computation(f)(x)", ["xla-computation"]),
    ("jax.ops.index_update(x, 0, y)", ["index-update"]),
    ("y = jax.core.axis_frame('i').size", ["axis-frame"]),
    ("y = jax.lax.pvary(x, 'i')", ["pvary"]),
    ("import jax.numpy as jnp; jnp.msort(x)", ["gone"]),
    ("from jax.lib import xla_bridge", ["gone"]),
    ("import jax.numpy as jnp; jnp.mean(x)", []),
    ("if hasattr(jax, 'tree_map'): jax.tree_map(f, x)", []),
]  # fmt: skip


@pytest.mark.parametrize(("source", "wanted"), PMAPS)
def test_pmap_under_every_name(tmp_path, source, wanted):
    assert ", ".join(sorted(found(tmp_path, main=source))) == wanted


@pytest.mark.parametrize(("line", "wanted"), LINES)
def test_a_line(tmp_path, line, wanted):
    assert sorted(found(tmp_path, main=MAPPED + line)) == sorted(["2 pmap", *(f"3 {row}" for row in wanted)])


def test_a_step_that_averages_gradients_under_the_default_check_is_wrong(tmp_path):
    source = "import jax\ndef f(w):\n  return jax.lax.pmean(jax.grad(loss)(w), 'i')\njax.shard_map(f, mesh=m{})"
    for given, wanted in {"": ["4 check-vma"], ", check_vma=True": ["4 check-vma"], ", check_vma=False": []}.items():
        assert found(tmp_path, main=source.format(given)) == wanted
    assert found(tmp_path, main=source.format("").replace("grad(loss)", "vmap(loss)")) == []


def test_what_an_error_is_caught_for_does_not_fail(tmp_path):
    source = "try:\n    from jax import linear_util\nexcept ImportError:\n    linear_util = None\n"
    assert found(tmp_path, main=source) == []


def test_names_are_followed_from_file_to_file(tmp_path):
    tools = "import jax\nAXIS = 'i'\np = jax.pmap\ndef make(f):\n    return jax.pmap(f, axis_name=AXIS)\n"
    main_file = "from tools import make, AXIS\nimport tools as t\nfrom jax import lax\nq = make(f)\nq(x)[1][0]\n"
    main_file += "t.p(f, AXIS)\nlax.pmean(x, AXIS)"
    wanted = ["5 first-copy", "6 pmap", "7 pmean", "tools 3 pmap", "tools 5 pmap"]
    assert found(tmp_path, tools=tools, main=main_file) == wanted
    (tmp_path / "unrelated.py").write_text("import jax\njax.tree_map")
    findings, _ = find(read_program(str(tmp_path / "main.py"))[0])  # a file, with the files that it imports
    assert [f"{Path(path).stem} {line} {row.id}".removeprefix("main ") for path, line, row, _ in findings] == wanted


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
        "2 old-optimizer, 5 pmean, 8 first-copy, 8 tree-map, 9 pmap",
        ('"per_device": ["batch_stats"]', "state, metrics = original_step(state=state, batch=batch)"),
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
    "reinforcement learning, a vmap inside pmap": (
        """import jax
def learn(state, env):
    grads = jax.lax.pmean(jax.lax.pmean(grads, axis_name="batch"), axis_name="device")
    return state, env
learner = jax.pmap(jax.vmap(learn, axis_name="batch"), axis_name="device")
keys = jax.random.split(key, n_devices * 4).reshape(n_devices, 4, -1)
state, env = learner(state, env)""",
        "3 pmean, 5 pmap, 6 prng-key",
        "Which function makes one update?",
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
    "jit with shardings": ("import jax\nstep = jax.jit(train_step, in_shardings=s)\njax.tree.map(f, x)", "", None),
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
        (
            "def check(state, batch, key, model, new_step=None):",
            "original_step(model=model, state=state, batch=batch, key=key, lr=0.1)",
            '"per_device": ["key"]',
        ),
    ),
    "two networks, latents, a loss scale": (
        """import jax
def step_g(state_G, state_D, z_latent, scale):
    value, grads = scale.value_and_grad(loss)(state_G.params)
    return state_G.apply(grads)
p_step = jax.pmap(step_g, axis_name="batch")
state_G = p_step(state_G, state_D, z_latent, scale)""",
        "3 scale-without-axis, 5 pmap",
        "Is `z_latent` part of the batch, or equal on all devices?",
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
        (
            "params, moments = state\n        images, labels = batch",
            "params, moments, loss = original_step.__wrapped__(params=params, moments=moments, images=images",
            'return (params, moments), {"loss": loss}',
        ),
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
    assert bool(verify["questions"]) == (name in ("linen_image", "score_scan"))  # a class, and a scan
    compile(verify["harness"], name, "exec")


MEAN = 'lax.pmean((loss, grads), axis_name="batch")'


@quick(1, ("changes", "wanted"), [({}, ""), ({MEAN: MEAN.replace("pmean", "psum")}, "8 times")])
def test_the_harness_runs_and_finds_a_sum_in_place_of_a_mean(monkeypatch, capsys, changes, wanted):
    harness = report_program(str(FOLDER / "accumulation.py"))["verify"]["harness"]
    module = load("accumulation", changes)
    monkeypatch.setitem(sys.modules, "accumulation", module)
    names: dict = {}
    exec(harness, names)
    names["check"](module.init(jax.random.PRNGKey(0)), next(module.batches(1, 64)))
    said = capsys.readouterr().out
    assert ("FAILED" in said, wanted in said) == (bool(wanted), True)


@pytest.mark.slow
def test_no_false_line_on_our_own_package():
    report = report_program(str(ROOT / "pmapdp"))
    assert report["unread"] == []
    assert [each for each in report["lines"] if each["status"] not in ("fine", "check")] == []
    assert {"pmap", "pmean", "axes-none"} <= {each["construct"] for each in report["lines"]}


def test_names_that_are_gone_are_gone_and_others_are_not():
    for name, row in BY_NAME.items():
        if name.split(".")[0] in ("jax", "flax"):
            assert is_missing(name) == (row in LOST) or name == "jax.config.config", name
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
    status, out, _ = run(capsys, FOLDER / "mixup.py", "--json")
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
        (lambda path: path / "no.py", "there is no file or folder"),
        (lambda path: path, "holds no Python"),
        (lambda path: (path / "a.txt").write_text("") or path / "a.txt", "neither Python nor a notebook"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, capsys, make, fragment):
    status, out, err = run(capsys, make(tmp_path))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert fragment in err
