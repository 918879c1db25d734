"""`python -m pmapdp.port` finds each construct of pmap in its line, whatever it is called there, and nothing else."""

import json
from pathlib import Path

import pytest
from pmap_programs import FOLDER, NAMES

from pmapdp import cli
from pmapdp.port.__main__ import main
from pmapdp.port.constructs import find, missing
from pmapdp.port.report import as_json
from pmapdp.port.sources import read
from pmapdp.port.table import TABLE

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "pmapdp" / "lessons" / "programs" / "pmap_program.py"


def found(tmp_path: Path, **sources: str) -> list[str]:
    """`line row` of what is found in the files, in order; those of any file but main begin with its name."""
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    findings, _ = find(read(str(tmp_path))[0])
    stems = [Path(each.path).stem for each in findings]
    return [
        f"{'' if stem == 'main' else f'{stem} '}{each.line} {each.row.id}"
        for stem, each in zip(stems, findings, strict=True)
    ]


MAPPED = "import jax\np = jax.pmap(lambda x: x, 'i')\n"  # two lines, which find pmap in line 2


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("import jax\njax.pmap(f, axis_name='i')", ["2 pmap"]),
        ("import jax as j\nj.pmap(f, axis_name='i')", ["2 pmap"]),
        ("from jax import pmap as p\np(f, 'i')", ["2 pmap"]),
        ("import jax\npmap = jax.pmap\npmap(f, 'i')", ["2 pmap", "3 pmap"]),
        ("import jax\n@jax.pmap\ndef f(x):\n    return x", ["2 no-axis", "2 pmap"]),
        ("import jax, functools\n@functools.partial(jax.pmap, axis_name='i')\ndef f(x): return x", ["2 pmap"]),
        ("import jax\nfrom functools import partial\np = partial(jax.pmap, axis_name='i')\np(f)", ["3 pmap", "4 pmap"]),
        ("import equinox as eqx\n@eqx.filter_pmap(axis_name='i')\ndef f(x): return x", ["2 filter-pmap"]),
        ("from flax import nnx\nnnx.pmap(f, axis_name='i')", ["2 nnx-pmap"]),
        ("import chex\nimport jax\njax.pmap(f, 'i')\nchex.fake_pmap()", ["3 pmap", "4 fake-pmap"]),
        ("import jax\njax.pmap(f, 'i', in_axes=(None, 0), out_axes=None)", ["2 axes-none", "2 pmap"]),
        ("import jax\no = {'axis_name': 'i', 'in_axes': None}\njax.pmap(f, **o)", ["3 axes-none", "3 pmap"]),
        ("import jax\njax.pmap(f, **options)", ["2 pmap"]),
        ("import jax\njax.pmap(f, 'i', in_axes=(0, 1))", ["2 in-axes", "2 axes-one", "2 pmap"]),
        ("import jax\njax.pmap(f, 'i', in_axes=-1)", ["2 in-axes", "2 axes-negative", "2 pmap"]),
        (
            "import jax\njax.pmap(f, 'i', static_broadcasted_argnums=(1,), devices=d)",
            ["2 static", "2 devices", "2 pmap"],
        ),
        (
            "import jax\njax.pmap(f, 'i', axis_size=8, global_arg_shapes=s)",
            ["2 axis-size", "2 global-shapes", "2 pmap"],
        ),
        ("import jax\njax.pmap(jax.pmap(f, 'i'), 'j')", ["2 nested", "2 pmap"]),
        ("import jax\ndef f(x):\n  return jax.pmap(g, 'i')(x)\njax.pmap(f, 'j')", ["3 nested", "3 pmap", "4 pmap"]),
        (
            "import jax\ng = jax.pmap(h, 'i')\ndef f(x):\n  return g(x)\njax.pmap(f, 'j')",
            ["2 pmap", "4 nested", "5 pmap"],
        ),
        ("import jax\njax.pmap(init_state)(keys)", ["2 init", "2 pmap"]),
        ("import jax\nfrom functools import partial\njax.pmap(partial(jax.lax.scan, f), 'i')", ["3 scan", "3 pmap"]),
        ("import jax\njax.pmap(lambda x: jax.lax.pmean(x, 'x'), 'x')", ["2 average", "2 pmap", "2 pmean"]),
    ],
)
def test_pmap_under_every_name(tmp_path, source, wanted):
    assert sorted(found(tmp_path, main=source)) == sorted(wanted)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("y = jax.lax.pmean(x, 'i')", ["pmean"]),
        ("y = jax.lax.psum(x, axis_name='i')", ["psum"]),
        ("y = jax.lax.psum(1, 'i')", ["psum-one"]),
        ("y = jax.lax.psum(x, 'of another map')", ["psum"]),  # the file uses pmap, so it is listed
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
        ("jax.debug.callback(print, x)", ["callback"]),
        ("b = batch_size // jax.process_count()", ["hosts"]),
        ("if jax.process_index() == 0: print()", []),
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
    ],
)  # fmt: skip
def test_a_line(tmp_path, line, wanted):
    lines = found(tmp_path, main=MAPPED + line)
    assert lines[0] == "2 pmap"
    assert sorted(lines[1:]) == sorted(f"3 {row}" for row in wanted)


def test_what_an_error_is_caught_for_does_not_fail(tmp_path):
    source = "try:\n    from jax import linear_util\nexcept ImportError:\n    linear_util = None\n"
    assert found(tmp_path, main=source) == []
    future = "from __future__ import annotations\nimport jax\ndef f(key: jax.random.KeyArray): pass\n"
    assert found(tmp_path, main=future) == []


def test_names_are_followed_from_file_to_file(tmp_path):
    tools = "import jax\nAXIS = 'i'\np = jax.pmap\ndef make(f):\n    return jax.pmap(f, axis_name=AXIS)\n"
    main_file = "from tools import make, AXIS\nimport tools as t\nfrom jax import lax\nq = make(f)\nq(x)[1][0]\n"
    main_file += "t.p(f, AXIS)\nlax.pmean(x, AXIS)"
    assert found(tmp_path, tools=tools, main=main_file) == [
        "5 first-copy", "6 pmap", "7 pmean", "tools 3 pmap", "tools 5 pmap",
    ]  # fmt: skip


def test_collectives_of_other_maps_and_programs_without_pmap_are_left_out(tmp_path):
    other = "import jax\ndef f(x):\n    return jax.lax.psum(x, 'of vmap')\njax.vmap(f, axis_name='of vmap')\n"
    assert found(tmp_path, other=other) == []
    assert found(tmp_path, other=other, main=MAPPED) == ["2 pmap"]
    same = other.replace("of vmap", "i")
    assert found(tmp_path, other=same, main=MAPPED) == ["2 pmap", "other 3 psum"]
    assert found(tmp_path, other=same.replace("vmap", "shard_map"), main=MAPPED) == ["2 pmap"]


def test_a_method_may_be_pmapped_and_its_result_kept(tmp_path):
    source = (
        "import jax\nclass T:\n    def __init__(self):\n        self.p = jax.pmap(self.step, axis_name='i')\n"
        "    def step(self, s, b):\n        return s, jax.lax.pmean(b, 'i')\n"
        "    def fit(self):\n        self.s, m = self.p(self.s, 1)\n        return m['loss'][0]\n"
    )
    assert found(tmp_path, main=source) == ["4 pmap", "6 pmean", "9 first-copy"]


EXPECTED = {
    "accumulation": {"donate", "first-copy", "init", "pmap", "pmean", "replicate", "shard"},
    "graph_equinox": {"filter-pmap", "psum", "replicate"},
    "haiku_mixed_precision": {"donate", "init", "pmap", "pmean", "replicate", "shard"},
    "hugging_face_tokens": {
        "donate", "get-metrics", "no-axis", "pad-unpad", "pmap",
        "prng-key", "psum", "replicate", "shard", "unreplicate",
    },
    "linen_dynamic_scale": {
        "average", "donate", "dynamic-scale", "get-metrics", "pmap",
        "pmean", "prefetch", "replicate", "shard", "unreplicate",
    },
    "linen_image": {
        "all-gather", "first-copy", "pmap", "pmean", "prng-key",
        "psum", "replicate", "shard", "stack-forest", "unreplicate",
    },
    "mixup": {"axis-index", "donate", "first-copy", "fold-in", "pmap", "pmean", "replicate", "shard"},
    "nnx_image": {"axes-none", "pmap", "pmean", "shard"},
    "ppo_environments": {"first-copy", "no-axis", "pmap", "pmean", "prng-key", "psum", "replicate"},
    "score_scan": {"donate", "host-key", "pmap", "pmean", "prng-key", "replicate", "scan", "unreplicate"},
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_programs(name):
    files, unread = read(str(FOLDER / f"{name}.py"))
    report = as_json(*find(files), files, unread)
    assert {each["construct"] for each in report["lines"]} == EXPECTED[name]
    assert report["summary"]["gone"] == report["summary"]["fails"] == 0  # they run
    compile(report["verify"]["harness"], name, "exec")
    assert report["verify"]["step"] in (FOLDER / f"{name}.py").read_text()


def test_what_verify_needs_is_read_from_the_program():
    files, unread = read(str(PROGRAM))
    need = as_json(*find(files), files, unread)["verify"]
    assert (need["step"], need["axis_name"]) == ("train_step", "batch")
    assert (need["state"], need["batch"], need["key"]) == (["state"], ["batch"], ["key"])
    assert need["per_device"] == ["batch_stats"]
    assert "state=create_state(jax.random.PRNGKey(0), steps, dropout)," in need["harness"]


def test_the_harness_of_a_step_inside_another_function_and_without_a_batch(tmp_path):
    source = "import jax\ndef train():\n  def epoch(params, env):\n    return params, env\n  jax.pmap(epoch, 'i')"
    (tmp_path / "ppo.py").write_text(source)
    files, unread = read(str(tmp_path))
    harness = as_json(*find(files), files, unread)["verify"]["harness"]
    assert "from ppo import epoch  # the step itself, without pmap, moved to the top level of the file" in harness
    assert "state=...,  # (params, env): as for one device" in harness
    assert "batch=...,  # leave it out if there is none; as for one device" in harness


@pytest.mark.slow
def test_no_false_line_on_our_own_package():
    files, unread = read(str(ROOT / "pmapdp"))
    findings, _ = find(files)
    assert unread == []
    assert [each for each in findings if each.row.status != "fine"] == []
    assert {"pmap", "pmean", "axes-none"} <= {each.row.id for each in findings}
    for each in findings:
        line = Path(each.path).read_text().splitlines()[each.line - 1]
        called = [name.partition("(")[0].rpartition(".")[2] for name in each.row.names]
        assert any(name in line for name in called), each
        assert "steps/pmap.py" in each.path or "pmap" in Path(each.path).read_text(), each


def test_names_that_are_gone_are_gone_and_others_are_not():
    for row in TABLE.values():
        for name in row.names:
            if name.split(".")[0] in ("jax", "flax") and "(" not in name:
                assert missing(name) == (row.status == "gone") or name == "jax.config.config", name


def run(capsys, *arguments) -> tuple[int, str, str]:
    status = cli.run(main, [str(each) for each in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_status_1_where_a_line_fails(tmp_path, capsys):
    path = tmp_path / "old.py"
    path.write_text("import jax\nraise SystemExit('this is never run')\njax.tree_map(f, jax.pmap(f, 'i')(x))\n")
    status, out, err = run(capsys, path)
    assert (status, err.count("\n")) == (1, 1)
    assert f"first {path}:3: gone" in err
    assert "  gone   tree-map" in out
    assert "docs/porting.md#tree-map" in out
    status, out, err = run(capsys, PROGRAM)
    assert (status, err) == (0, "")
    assert "Port in this order:\n  1. Put my_pmap" in out


def test_json_is_one_object(capsys):
    status, out, _ = run(capsys, FOLDER / "mixup.py", "--json")
    report = json.loads(out)
    assert status == 0
    assert set(report["lines"][0]) == {
        "path", "line", "construct", "code", "status", "today", "shard_map", "jit", "link",
    }  # fmt: skip
    assert report["order"][0].endswith("update_fn")


def test_a_notebook_and_files_that_do_not_parse(tmp_path, capsys):
    cells = [
        {"cell_type": "markdown", "source": ["jax.pmap"]},
        {"cell_type": "code", "source": ["%time\n", "!ls\n", "import jax\n", "p = jax.pmap(f, 'i')"]},
        {"cell_type": "code", "source": ["%%bash\n", "ls -l | wc"]},
        {"cell_type": "code", "source": "jax.tree_map(f,\n x)"},
        {"cell_type": "code", "source": ["print 'old'"]},
    ]  # fmt: skip
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "b.py").write_text("import jax\nprint 'old'\n")
    (tmp_path / "c.ipynb").write_text("{}")
    (tmp_path / "d.py").write_bytes(b"x = '\xff\xfe'")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "e.py").write_text("import jax\njax.tree_map")
    status, out, err = run(capsys, tmp_path)
    assert status == 1
    assert "cell 2 line 4  fine   pmap" in out
    assert "cell 4 line 1  gone   tree-map" in out
    assert f"{tmp_path / 'a.ipynb'}: line 1 of cell 5 does not parse" in out
    assert f"{tmp_path / 'b.py'}:2 does not parse" in out
    assert f"{tmp_path / 'c.ipynb'} cannot be read" in out
    assert f"{tmp_path / 'd.py'} cannot be read" in out
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


def test_a_long_sum_is_read(tmp_path, capsys):
    (tmp_path / "a.py").write_text("import jax\nx = " + " + ".join(["y"] * 3000) + "\njax.tree_map(f, x)\n")
    status, out, _ = run(capsys, tmp_path)
    assert status == 1
    assert "3  gone   tree-map" in out


def test_a_program_without_pmap_says_so(tmp_path, capsys):
    (tmp_path / "a.py").write_text("x = 1\n")
    assert run(capsys, tmp_path) == (0, "No construct of pmap was found.\n", "")
