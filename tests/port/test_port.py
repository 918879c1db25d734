"""`python -m pmapdp.port` finds each construct of pmap in its line, under any name, and
says how to verify the step.
"""

import json
import re
from pathlib import Path
from typing import Any

import entry
import jax
import jax.experimental
import pytest
from launch import python
from pmap_programs import FOLDER, NAMES

from pmapdp.port.__main__ import as_text, report_program
from pmapdp.port.rows import PLACES, ROW_OF_NAME, ROWS, is_missing

LESSON_12 = FOLDER.parents[1] / "lessons" / "program" / "12_old_pmap.py"


def constructs(path: Path) -> list[str]:
    """`line construct` of what is found, in order.

    Lines of other files than main begin with the file's name.
    """
    lines = report_program(str(path))["lines"]
    return [
        f"{Path(x['path']).stem} {x['line']} {x['construct']}".removeprefix("main ")
        for x in lines
    ]


def found(tmp_path: Path, **sources: str) -> list[str]:
    for name, source in sources.items():
        (tmp_path / f"{name}.py").write_text(source)
    return constructs(tmp_path)


MAPPED = (
    "import jax\np = jax.pmap(lambda x: x, 'i')\n"  # two lines, with a pmap in line 2
)
AVERAGE = "import jax\ndef f(w):\n  return jax.lax.pmean(jax.grad(g)(w), 'i')\n"
CLASS = """import jax
class Experiment:
    def __init__(self):
        self._update = jax.pmap(self._step, axis_name="i")
    def step(self):
        self._state, scalars = self._update(self._state, inputs)
        return scalars["loss"][0]"""
FACTORY = """import jax
def make_step(model):
    def step(state, batch):
        return state, model(batch)
    return jax.pmap(step, axis_name="i")
train_step = make_step(model)
state, metrics = train_step(state, batch)
metrics["loss"][0]"""
METHOD = """import jax
class Experiment:
    def __init__(self):
        self._update = jax.pmap(self._update, axis_name="i")
    def _update(self, state):
        return state
    def step(self):
        return self._update(self._state)[1][0]"""
PMAPS = [
    ("import jax as j\nj.pmap(f, axis_name='i')", "2 pmap"),
    ("import jax\nfrom jax import pmap as p\npmap = jax.pmap\np(f, 'i')\npmap(f, 'i')",
     "3 pmap, 4 pmap, 5 pmap"),
    ("import jax, functools as t\n@t.partial(jax.pmap, axis_name='i')\n"
     "def f(x): return x\n", "2 pmap"),
    ("import jax\n@jax.pmap\ndef f(x):\n    return x, x\na, b = f(x)\nb[0]",
     "2 pmap, 6 first-copy"),
    (CLASS, "4 pmap, 7 first-copy"),
    ("import jax\nfrom functools import partial\n"
     "p = partial(jax.pmap, axis_name='i')\np(f)", "3 pmap, 4 pmap"),
    ("from functools import partial\nimport jax\np = partial(jax.pmap, axis_name='i')\n"
     "p(f, donate_argnums=0)", "3 pmap, 4 donate, 4 pmap"),
    ("import equinox as eqx\n@eqx.filter_pmap(axis_name='i')\ndef f(x): return x",
     "2 filter-pmap"),
    ("import jax\njax.pmap(f, 'i', in_axes=(None, 0), out_axes=None)",
     "2 in-axes, 2 pmap"),
    ("import jax\njax.pmap(f, **options)", "2 pmap"),
    ("import jax\njax.pmap(f, 'i', in_axes=(0, 1))", "2 in-axes, 2 pmap"),
    ("import jax\njax.pmap(f, 'i', static_broadcasted_argnums=(1,), devices=d)",
     "2 devices, 2 pmap, 2 static"),
    ("import jax\njax.pmap(f, 'i', axis_size=8)", "2 axis-size, 2 pmap"),
    ("import jax\ns = jax.shard_map(f, mesh=m, in_specs=p, out_specs=p)\njax.pmap(s)",
     "3 nested, 3 pmap"),
    # Around a function with pmap as its decorator, or with pmap in it.
    ("import jax\n@jax.pmap\ndef f(x): return x\ng = jax.pmap(f, 'i')",
     "2 pmap, 4 nested, 4 pmap"),
    ("import jax\ndef f(x):\n  return jax.pmap(h)(x)\ng = jax.pmap(f, 'i')",
     "3 pmap, 4 nested, 4 pmap"),
    ("import jax\n@jax.pmap\n@jax.pmap\ndef f(x): return x",
     "2 pmap, 3 pmap, 4 nested"),
    ("import jax\n@jax.pmap\ndef f(x):\n  return jax.pmap(h)(x)",
     "2 pmap, 3 nested, 4 pmap"),
    ("try:\n    from jax import linear_util\n"
     "except ImportError:\n    linear_util = None\n", ""),
    (AVERAGE + "jax.shard_map(f, mesh=m)", "4 check-vma"),
    (AVERAGE + "jax.shard_map(f, check_vma=False)", ""),
    ("import jax\ndef f(w):\n  g = jax.grad(l)(w)\n  return jax.lax.pmean(g, 'i')\n"
     "jax.shard_map(f, mesh=m)", "5 check-vma"),
    (AVERAGE.replace("grad", "vmap") + "jax.shard_map(f, mesh=m)", ""),
    # A formatter puts the call on several lines: the name on its right side is the
    # function.
    ("import jax\ndef f(x): return x\n"
     "f = jax.pmap(\n    f, axis_name='i'\n)\ny = f(x)[1][0]", "3 pmap, 6 first-copy"),
    (METHOD, "4 pmap, 8 first-copy"),
    (FACTORY, "5 pmap, 8 first-copy"),
    ("from jax.numpy import *", ""),
    # The result may be a tuple, so only a part of it is known to be a row.
    (AVERAGE + "p = jax.pmap(f, 'i')\ny = p(x)[0]", "3 pmean, 4 pmap"),
    # A function that shows that it returns one array: its [0] is a row.
    ("import jax\ndef f(x):\n  ok = x > 0\n  return jax.lax.pmean(ok.mean(), 'i')\n"
     "p = jax.pmap(f, 'i')\na = [p(x)[0] for x in y]", "4 pmean, 5 pmap, 6 first-copy"),
    ("import jax\np = jax.pmap(lambda x: jax.numpy.sum(x))\np(x)[0]",
     "2 pmap, 3 first-copy"),
    ("import jax\np = jax.pmap(lambda w: w - 1, out_axes=None)\np(x)[0]",
     "2 in-axes, 2 pmap"),
    ("import jax\np = jax.pmap(lambda w: w.apply(w))\np(x)[0]", "2 pmap"),
    # In the mapped function, and in what it calls, arrays have no device axis.
    ("import jax\ndef step(x):\n  return jax.tree.map(lambda y: y[0], x)\n"
     "p = jax.pmap(step, 'i')", "4 pmap"),
    ("import jax\nclass A:\n  def setup(self):\n    self.p = jax.pmap(self.step, 'i')\n"
     "  def step(self, x):\n    return self.first(x)\n"
     "  def first(self, x):\n    return jax.tree.map(lambda y: y[0], x)", "4 pmap"),
    ("import jax\np = jax.pmap(lambda w: jax.lax.pmean(x=w, axis_name='i'))\np(x)[0]",
     "2 pmap, 2 pmean"),
    ("import jax\nf = lambda w: w.sum()\np = jax.pmap(jax.value_and_grad(f))\np(x)[0]",
     "3 pmap"),
    # A name that's bound again, first by an import; and a replicated tree.
    ("import jax\nfrom a import f\nf = jax.pmap(f, 'i')\nfor x in y:\n  s, z = f(x)\n"
     "  z[0]", "3 pmap, 6 first-copy"),
    ("import jax\nfrom flax import jax_utils as j\njax.pmap(f)\ns = j.replicate(s)\n"
     "s.step[0]", "3 pmap, 4 replicate, 5 first-copy"),
    ("import jax\np = jax.pmap(f)\ns, m = p(x)\nfor k, v in m.items():\n  v[0]",
     "2 pmap, 5 first-copy"),
    # A name belongs to its own function alone.
    ("import jax\ndef f():\n  p = jax.pmap(g, 'i')\ndef h(p):\n  return p(x)[1][0]",
     "3 pmap"),
    ("import jax\ndef f():\n  return p(x)[1][0]\np = jax.pmap(g, 'i')",
     "3 first-copy, 4 pmap"),
    # Only a `try` that expects a missing name exempts it, and the name that it falls
    # back on.
    ("import jax\ntry:\n    jax.tree_map(f, x)\nexcept Exception as e: q.put(e)",
     "3 tree-map"),
    ("import jax\ntry: f = jax.tree_map\nexcept AttributeError: f = jax.tree.map", ""),
    ("import jax\ntry: f = jax.tree.map\nexcept AttributeError: f = jax.tree_map", ""),
    ("v = net.init(k, x)\ns, p = v.pop('params')", "2 pop-params"),
    ("import flax\ns, p = flax.core.pop(v, 'params')\np = v.pop('params')", ""),
    ("from flax.metrics import tensorboard", ""),
    # A module that's there, though it's no attribute of its package.
    ("from flax.configurations import config", ""),
    ("import jax\nfrom jax.sharding import Mesh\nm = Mesh(d, 'i')\nwith m:\n    pass",
     "4 with-mesh"),
    ("from jax.experimental import maps\nwith maps.Mesh(d, 'i'):\n    pass",
     "1 xmap, 2 moved-mesh, 2 with-mesh"),
    ("from jax.experimental.pjit import pjit\npjit(f, in_axis_resources=None)",
     "2 axis-resources, 2 pjit"),
    ("from jax.experimental import PartitionSpec", "1 partition-spec"),
    ("import jax\njax.sharding.PmapSharding", "2 pmap-sharding"),
]  # fmt: skip
LINES = [
    ("y = jax.lax.psum(x, axis_name='i')", ["psum"]),
    ("y = jax.lax.psum(1, 'i')", ["psum"]),
    ("y = jax.lax.psum(grads, 'i')", ["psum", "psum-gradients"]),
    # By its value, whatever it's called.
    ("g = jax.grad(f)(w); y = jax.lax.psum(g, 'i')", ["psum", "psum-gradients"]),
    ("v = jax.value_and_grad(f); l, g = v(w); y = jax.lax.psum(g, 'i')",
     ["psum", "psum-gradients"]),
    ("l, g = jax.value_and_grad(f)(w); y = jax.lax.psum(l, 'i')", ["psum"]),
    # What the loss returns beside itself isn't a gradient.
    ("g, s = jax.grad(f, has_aux=True)(w); y = jax.lax.psum(s, 'i')", ["psum"]),
    ("g, s = jax.grad(f, has_aux=True)(w); y = jax.lax.psum(g, 'i')",
     ["psum", "psum-gradients"]),
    ("u, v = jax.grad(f, (0, 1))(w, w); y = jax.lax.psum(v, 'i')",
     ["psum", "psum-gradients"]),
    ("g = jax.grad(f)(w); y = g / jax.device_count()", ["divided-loss"]),
    ("y = jax.lax.all_gather(x, 'i', axis_index_groups=g)",
     ["all-gather", "axis-groups"]),
    ("k = jax.random.fold_in(k, jax.lax.axis_index('i'))", ["axis-index"]),
    ("from flax.training import common_utils as c; c.shard(c.get_metrics(b))",
     ["shard", "get-metrics"]),
    ("import haiku as hk; hk.BatchNorm(True, True, 0.9, cross_replica_axis='i')",
     ["batch-norm"]),
    ("v = scale.value_and_grad(loss, axis_name='i')", ["dynamic-scale"]),
    ("v = scale.value_and_grad(loss)", ["scale-without-axis"]),
    ("from flax.optim import dynamic_scale", ["moved-scale"]),
    ("y = jax.tree_util.tree_map(lambda x: x[0], p(x))", ["first-copy"]),
    ("y = jax.tree.map(lambda x: x[0], batch)", []),
    ("def save(state): return jax.tree_map(lambda x: x[0], state)",
     ["first-copy", "tree-map"]),
    ("def get_first(xs): return jax.tree.map(lambda x: x[0], xs)", ["first-copy"]),
    ("m = jax.tree.map(lambda m: float(m[0]), metrics)", ["first-copy"]),
    ("s = jax.tree.map(lambda x: x[0], state.batch_stats)", ["first-copy"]),
    ("b = jax.tree.map(lambda x: x[0], batch['image'])", []),
    ("b = jax.tree.map(lambda x: x[0], train_batch)", []),
    ("b = jax.tree.map(lambda x: x[0], model_inputs)", []),
    ("b = jax.tree.map(lambda x: x[0], batch_metrics)", ["first-copy"]),
    ("b = jax.tree.map(lambda x: x[0, 0], learner_state)", ["first-copy"]),
    ("b = jax.tree.map(lambda x: x[:, 0], learner_state)", []),
    ("b = jax.tree.map(lambda x: x['loss'][0] + y[0], state)", []),
    # The part of a pair.
    ("m = jax.tree.map(lambda _, pair: pair[0], mean, pairs)", []),
    ("loss = total_loss / jax.device_count()", ["divided-loss"]),
    ("l, g = jax.value_and_grad(f)(w); y = l / jax.device_count()", ["divided-loss"]),
    ("from flax.metrics import tensorboard as t; w = t.SummaryWriter(d)",
     ["flax-tensorboard"]),
    ("m = jax.make_mesh((8,), ('i',))", ["make-mesh"]),
    ("m = jax.make_mesh(axis_shapes=(8,), axis_names='i', axis_types=t)",
     ["axis-shapes"]),
    ("q = jax.pmap(lambda x: (x, x), 'i'); y, z = q(x); y[0]", ["pmap", "first-copy"]),
    ("y = p(x); z = y.params['w'][0]; u = y.mean(1)[0]", ["first-copy"]),
    # The values of a dictionary, in a loop.
    ("s, m = p(x); y = {k: float(v[0]) for k, v in m.items()}", ["first-copy"]),
    ("s, m = p(x); y = [v[0] for v in m.values()]", ["first-copy"]),
    ("y = [v[0] for v in batch.values()]", []),
    ("y = [v[0] for v in p(x)]", []),
    ("y = x.device_buffers", ["device-buffers"]),
    ("device_buffers = g(x); y = device_buffers", []),
    ("jax.shard_map(f, check_rep=False)", ["check-rep"]),
    # Defined by themselves.
    ("z = z[0]; f = jax.vmap(f); q = jax.pmap(f, 'i')", ["pmap"]),
    ("import functools as t; h = t.partial(h, 1); k = k(); k()(h)", []),
    ("from jax.config import config; config.update('jax_enable_x64', True)",
     ["old-config"]),
    ("from flax import optim; from jax.lib import xla_bridge",
     ["old-optimizer", "xla-bridge"]),
    ("from jax.lib import xla_client", ["gone"]),
    ("if hasattr(jax, 'tree_map'): jax.tree_map(f, x)", []),
    ("from jax.config import config; config.enable_omnistaging()",
     ["old-config", "omnistaging"]),
    ("jax.config.enable_omnistaging()", ["omnistaging"]),
    ("from jax.config import config; config.parse_flags_with_absl()", ["old-config"]),
    ("jax.config.parse_flags_with_absl()", []),
    ("p = variables['params'].unfreeze()", ["frozen-dict"]),
    ("v = variables.copy({'params': p})", ["frozen-dict"]),
    ("v = variables.copy(add_or_replace=new)", ["frozen-dict"]),
    ("v = variables.copy(); v = x.copy('K'); import copy; w = copy.copy({})", []),
    ("import flax; v = flax.core.freeze(v); w = v.unfreeze(); w = v.copy({})", []),
    ("import flax; v = flax.core.unfreeze(v); w = flax.core.copy(v, {})", []),
    ("import jax.numpy as jnp; y = jnp.clip(x, a_min=0)", ["clip"]),
    ("import jax.numpy as jnp; y = jnp.clip(x, 0, 1) + jnp.clip(x, max=1)", []),
    ("import numpy as np; y = np.clip(x, a_min=0, a_max=1)", []),
    ("import numpy as np; y = x.astype(np.float)", ["numpy-types"]),
    ("import numpy as np; y = np.product(x)", ["gone"]),
    ("import numpy as np; y = np.prod(x, dtype=np.float32); np.random.seed(0)", []),
    ("if jax.host_id() == 0: print(jax.host_count())", ["process-index"]),
    ("from jax.ops import index; y = index[0]", ["index-update"]),
    # A folder that's absolute, as far as the program shows, is fine.
    ("from flax.training import checkpoints as c; c.save_checkpoint('ck', s, 1)",
     ["checkpoint", "checkpoint-folder"]),
    ("from flax.training import checkpoints as c; c.restore_checkpoint(FLAGS.dir, s)",
     ["checkpoint", "checkpoint-folder"]),
    ("from flax.training import checkpoints as c; c.save_checkpoint('/ck', s, 1)",
     ["checkpoint"]),
    ("from flax.training import checkpoints as c; import os; "
     "folder = os.path.abspath(d); c.save_checkpoint(ckpt_dir=folder, target=s)",
     ["checkpoint"]),
    ("from flax.training import checkpoints as c; c.save_checkpoint(p.resolve(), s, 1)",
     ["checkpoint"]),
]  # fmt: skip
LINES = [
    (MAPPED + line, ", ".join(["2 pmap", *sorted(f"3 {row}" for row in rows)]))
    for line, rows in LINES
]


@pytest.mark.parametrize(("source", "wanted"), PMAPS + LINES)
def test_a_construct_is_found_in_its_line(tmp_path, source, wanted):
    assert ", ".join(sorted(found(tmp_path, main=source))) == wanted


def test_every_name_of_the_table_is_found_and_what_is_gone_is_gone(tmp_path):
    calls = {}
    for name, row in ROW_OF_NAME.items():
        function, is_keyword, keyword = name.strip(")").partition("(")
        if is_keyword:
            called = "jax.pmap" if function == "pmap" else f"x.{function}"
            calls[f"{called}(x, {keyword}=1)"] = row
        else:
            calls[f"x{name}" if name.startswith(".") else f"{name}(x)"] = row
    source = "import chex, equinox, flax, jax, numpy\n" + "\n".join(calls)
    lines = found(tmp_path, main=source)
    missed = [
        call
        for number, call in enumerate(calls, 2)
        if f"{number} {calls[call]}" not in lines
    ]
    assert missed == []
    for name, row in ROW_OF_NAME.items():
        if name.startswith(("jax.", "flax.", "numpy.")):
            assert is_missing(name) == (ROWS[row].status == "gone"), name


REPLACEMENTS = {
    "from jax.lib import xla_bridge\nxla_bridge.get_backend().platform": (
        "`jax.default_backend()`"
    ),
    "from jax.experimental import optimizers": "Optax",
    "from jax.experimental.maps import Mesh": "`jax.sharding.Mesh`",
    "from jax.interpreters.pxla import Mesh": "`jax.sharding.Mesh`",
    "from jax.experimental.pjit import PartitionSpec": "`jax.P`",
    "from jax.experimental.pjit import with_sharding_constraint": (
        "`jax.lax.with_sharding_constraint(x, sharding)`"
    ),
    "from flax import optim": "Optax",
    "from flax import nn": "`flax.linen`",
    "import numpy as np\nx = np.float(0)": "`float`",
    "import jax\njax.config.enable_omnistaging()": "not needed",
    "import jax\njax.tree_multimap(f, x, y)": (
        "`jax.tree.map`, which takes several trees"
    ),
    "import jax\njax.random.shuffle(key, x)": (
        "`jax.random.permutation(key, x, independent=True)`"
    ),
    "from jax import nn\nnn.normalize(x)": "`jax.nn.standardize(x)`",
    "from jax import lax\nlax.tie_in(x, y)": "`y`",
}


@pytest.mark.parametrize("source", REPLACEMENTS)
def test_the_commonest_gone_names_have_a_replacement(tmp_path, source):
    (tmp_path / "main.py").write_text(source)
    line, *_ = report_program(str(tmp_path))["lines"]
    assert line["status"] == "gone"
    assert line["shard_map"].startswith(REPLACEMENTS[source])


def test_the_replacement_of_a_gone_name_exists():
    gone = [row.shard_map for row in ROWS.values() if row.status == "gone"]
    names = re.findall(r"\b(?:jax|flax|optax)(?:\.\w+)+", " ".join(gone))
    assert len(names) > 20
    assert [name for name in names if is_missing(name)] == []


def test_a_name_whose_lookup_raises_is_not_called_gone(tmp_path, monkeypatch):
    def raise_error(name):
        raise ValueError(f"No current InsertionPoint for {name}")

    monkeypatch.setattr(jax.experimental, "__getattr__", raise_error, raising=False)
    source = "import jax\njax.experimental.some_primitive(x)\njax.tree_map(f, x)"
    assert found(tmp_path, main=source) == ["3 tree-map"]


def test_names_are_followed_from_file_to_file(tmp_path):
    tools = "import jax\nAXIS = 'i'\np = jax.pmap\nq = jax.pmap(f, axis_name=AXIS)\n"
    main_file = "from tools import q, AXIS\nimport tools as t\n"
    main_file += "from jax import lax\nq(x)[1][0]\n"
    main_file += "t.p(f, AXIS)\nlax.pmean(x, AXIS)"
    wanted = ["4 first-copy", "5 pmap", "6 pmean", "tools 3 pmap", "tools 4 pmap"]
    assert found(tmp_path, tools=tools, main=main_file) == wanted
    (tmp_path / "unrelated.py").write_text("import jax\njax.tree_map")
    # A file, with the files that it imports.
    assert constructs(tmp_path / "main.py") == wanted


def test_a_folder_named_jax_is_not_the_library(tmp_path):
    (tmp_path / "jax").mkdir()
    for name in ("__init__", "utils"):
        (tmp_path / "jax" / f"{name}.py").write_text("import jax\njax.tree_map\n")
    wanted = ["__init__ 2 tree-map", "utils 2 tree-map", "2 pmap"]
    assert found(tmp_path, main=MAPPED) == wanted


def test_collectives_of_a_program_without_pmap_are_left_out(tmp_path):
    other = "import jax\ndef f(x):\n    return jax.lax.psum(x, 'v')\n"
    other += "jax.vmap(f, axis_name='v')\n"
    assert found(tmp_path, other=other) == []
    assert found(tmp_path, other=other, main=MAPPED) == ["2 pmap", "other 3 psum"]


SMALL = """import functools, jax
def train_step(w, batch, key):
    loss, grad = jax.value_and_grad(lambda w: ((batch @ w) ** 2).mean())(w)
    return w - 0.1 * jax.lax.psum(grad, "i"), jax.lax.pmean(loss, "i")
p_step = jax.pmap(train_step, axis_name="i")
def main(w, batch, key):
    w, loss = p_step(w, batch, key)
"""
DECORATED = {
    "def train": '@functools.partial(jax.pmap, axis_name="i")\ndef train',
    "p_step(": "train_step(",
}
MAPS = 'p_step = jax.pmap(train_step, axis_name="i")'
CHECKPOINT = {"p(train_step": "p(jax.checkpoint(train_step)"}
MADE = {
    MAPS: "def make_step(rate):\n  return train_step\n"
    "p_step = jax.pmap(make_step(0.1), axis_name='i')"
}
QUESTIONS = {
    "What is AXIS?": {
        MAPS: "def setup(c):\n  return jax.pmap(train_step, axis_name=c.axis)"
    },
    "How does functools.partial(jax.lax.scan, train_step) make one update?": {
        "p(train_step": "p(functools.partial(jax.lax.scan, train_step)"
    },
    "takes (w, batch, labels): which are": {
        "train_step(w, batch, key):": "train_step(w, batch, labels):"
    },
    "returns (w - 0.1 * jax.lax.psum(grad, 'i'), key, loss): which are": {
        'jax.lax.pmean(loss, "i")': "key, loss"
    },
    "What is make?": {
        MAPS: "def setup(make):\n  return jax.pmap(make(), axis_name='i')"
    },
}


def describe_step(folder: Path, name: str, changes: dict[str, str]) -> dict[str, Any]:
    source = SMALL
    for old, new in changes.items():
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    (folder / f"{name}.py").write_text(source)
    return report_program(str(folder))["verify"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_the_program_does_not_show_is_a_question_in_the_file(tmp_path, question):
    verify = describe_step(tmp_path, "main", QUESTIONS[question])
    assert question in verify["questions"][0]
    assert f"# {verify['questions'][0]}" in verify["program"]
    compile(verify["program"], "verify_step.py", "exec")
    (tmp_path / "verify_step.py").write_text(verify["program"])
    blank = "first_arguments"
    if question.startswith("What is "):
        blank = question.removeprefix("What is ").strip("?")
    else:
        assert 'raise SystemExit("verify_step.py: fill in step")' in verify["program"]
    done = python(tmp_path / "verify_step.py")
    assert done.stderr == f"verify_step.py: fill in {blank}\n"


PARTIAL = """import functools
import jax
from flax import linen as nn
RATE = 0.1
schedule = lambda step: RATE
def train_step(act, w, batch, learning_rate_fn):
    grad = jax.grad(lambda w: act((batch @ w) ** 2).mean())(w)
    return w - learning_rate_fn(0) * jax.lax.psum(grad, "i"), {}
def main(config, w, batch):
    learning_rate_fn = lambda step: config.rate
    RATE = config.rate
    p_step = jax.pmap(functools.partial(train_step, ARGUMENTS), axis_name="i")
"""


def describe_partial(folder: Path, name: str, arguments: str) -> dict[str, Any]:
    source = PARTIAL.replace("ARGUMENTS", arguments)
    (folder / f"{name}.py").write_text(source)
    return report_program(str(folder))["verify"]


@pytest.mark.parametrize(
    ("arguments", "blanks"),
    [
        ("nn.relu, learning_rate_fn=learning_rate_fn", ["learning_rate_fn"]),
        ("nn.relu, learning_rate_fn=schedule", []),
        ("nn.relu, learning_rate_fn=dict(schedule=schedule).get", []),
        ("nn.relu, learning_rate_fn=RATE", ["RATE"]),  # another RATE than the module's
        ("act, learning_rate_fn=config.schedule", ["act", "config"]),
    ],
)
def test_a_partial_is_written_with_blanks_for_what_a_run_makes(
    tmp_path, arguments, blanks
):
    verify = describe_partial(tmp_path, "train", arguments)
    assert verify["questions"] == [f"What is {name}?" for name in blanks]
    program = verify["program"]
    assert f"step = functools.partial(train_step, {arguments})\n" in program
    assert "\ntrain_step = program.train_step\n" in program
    assert ("\nschedule = program.schedule\n" in program) == ("=schedule" in arguments)
    assert "Return dict(state=..., batch=...) for the first update.\n" in program
    for name in blanks:
        assert f"\n{name} = ...\n" in program
    file = tmp_path / "verify_step.py"
    file.write_text(program)
    first = [*blanks, "first_arguments"][0]
    assert python(file).stderr == f"verify_step.py: fill in {first}\n"


def test_a_name_under_the_guard_of_main_is_a_blank(tmp_path):
    source = PARTIAL.partition("def main")[0] + (
        'if __name__ == "__main__":\n    made = make()\n'
        "    step = functools.partial(train_step, nn.relu, learning_rate_fn=made)\n"
        "    p = jax.pmap(step, axis_name='i')\n"
    )
    (tmp_path / "train.py").write_text(source)
    assert report_program(str(tmp_path))["verify"]["questions"] == ["What is made?"]


STEPS = {
    "apply_model": "def apply_model(s, b): return jax.grad(f)(s, b), 0\n"
    "p = jax.pmap(apply_model, 'i')",
    "update": "def update(s, b): return s, 0\n"
    "p = jax.pmap(lambda s, b: update(s, b), 'i')",
    "train": "@nnx.pmap(axis_name='i')\ndef train(m, b): return f(m, b)",
    "run_batch": "def gradients(s, b): return jax.grad(f)(s, b)\n"
    "def run_batch(s, b): return s - gradients(s, b), 0\n"
    "p = jax.pmap(run_batch, 'i')",
    "": "def sync(x): return jax.lax.psum(x, 'i')\np = jax.pmap(sync, 'i')\n"
    "q = jax.pmap(lambda x: jax.lax.pmean(x, 'i'), 'i')",
}


@pytest.mark.parametrize("name", STEPS)
def test_the_step_is_what_trains_or_computes_gradients(tmp_path, name):
    imports = "import jax\nfrom flax import nnx\n"
    (tmp_path / "main.py").write_text(f"{imports}{STEPS[name]}\n")
    report = report_program(str(tmp_path))
    verify = report["verify"]
    questions = {
        "apply_model": [
            "apply_model returns gradients: how does your loop apply them?"
        ],
        "train": [
            "nnx.pmap changes the arguments of train in place: how does it return the "
            "new state?"
        ],
    }
    if name:
        assert verify["questions"] == questions.get(name, [])
        assert f"\n{name} = program.{name}\n" in verify["program"]
    else:  # a barrier, and the average of statistics
        assert verify is None
    said = "There's no program to verify a step" in as_text(report, everything=True)
    assert said == (verify is None)


NORMALIZED = """import jax
from flax import linen
def train_step(state, batch):
    x = linen.BatchNorm(OPTIONS)(batch)
    return jax.lax.pmean(jax.grad(f)(state["batch_stats"]), "i"), x
p = jax.pmap(train_step, "i")
"""


@pytest.mark.parametrize("options", ["", "axis_name='i'"])
def test_statistics_that_the_devices_share_are_compared(tmp_path, options):
    """And a name in a text isn't a leaf."""
    source = NORMALIZED.replace("OPTIONS", options) + "'no dropout_rng'\n"
    (tmp_path / "main.py").write_text(source)
    program = report_program(str(tmp_path))["verify"]["program"]
    per_device = [] if options else ["batch_stats"]
    assert f"PER_DEVICE = {per_device}\n" in program


@pytest.mark.parametrize("last", ["labels", "dropout_rng"])
def test_a_step_to_fill_in_takes_a_key_if_the_old_one_does(tmp_path, last):
    path = tmp_path / "main.py"
    source = f"def train_step(w, m, x, {last}): return w, m\n"
    path.write_text(f"import jax\n{source}jax.pmap(train_step, 'i')\n")
    program = report_program(str(path))["verify"]["program"]
    takes_key = last == "dropout_rng"
    assert ("\ndef step(state, batch, key):\n" in program) == takes_key
    assert ("\ndef step(state, batch):\n" in program) != takes_key


NESTED = """import jax
class Trainer:
    def __init__(self):
        def train_step(state, batch):
            return jax.lax.pmean(state, "i"), {}
        self.nested = jax.pmap(train_step, axis_name="i")
"""
METHOD_STEP = """import jax
class Trainer:
    def __init__(self):
        self.mapped = jax.pmap(self.update, axis_name="i")
    def update(self, state, batch):
        return jax.lax.pmean(state, "i"), {}
"""


@pytest.mark.parametrize(
    ("name", "source"), [("train_step", NESTED), ("update", METHOD_STEP)]
)
def test_nested_functions_and_methods_get_a_file_with_questions(tmp_path, name, source):
    (tmp_path / "main.py").write_text(source)
    verify = report_program(str(tmp_path))["verify"]
    assert verify["step"] == name
    assert verify["questions"] == [f"What is {name}?"]
    (tmp_path / "verify_step.py").write_text(verify["program"])
    done = python(tmp_path / "verify_step.py")
    assert done.stderr == f"verify_step.py: fill in {name}\n"


def test_a_step_of_a_package_is_imported_as_its_module(tmp_path):
    (tmp_path / "package").mkdir()
    for name in ("__init__", "axis"):
        (tmp_path / "package" / f"{name}.py").write_text("AXIS = 'i'\n")
    path = tmp_path / "package" / "train.py"
    path.write_text(f"from .axis import AXIS\n{SMALL}")
    verify = report_program(str(path))["verify"]
    assert verify["questions"] == []
    assert "# The import runs the top level of your program." in verify["program"]
    (tmp_path / "verify_step.py").write_text(verify["program"])
    done = python(tmp_path / "verify_step.py")
    assert done.stderr == "verify_step.py: fill in first_arguments\n"


ARGUMENTS = """    import numpy as np
    rows = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 8)
    return dict(state=np.ones(3, np.float32), batch=rows, key=keys)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_right", [False, True])
@pytest.mark.parametrize("name", ["program", "12_program"])
@pytest.mark.parametrize("changes", [{}, DECORATED, CHECKPOINT, MADE])
def test_the_file_is_a_program_whose_status_tells_a_sum_from_a_mean(
    tmp_path, changes, name, is_right
):
    if is_right:
        changes = changes | {"jax.lax.psum(grad": "jax.lax.pmean(grad"}
    program = describe_step(tmp_path, name, changes)["program"]
    blank = '    raise SystemExit("verify_step.py: fill in first_arguments")\n'
    assert program.count(blank) == 1
    file = tmp_path / "verify_step.py"
    file.write_text(program.replace(blank, ARGUMENTS))
    done = python(file, env={"XLA_FLAGS": None})
    assert done.returncode == (0 if is_right else 1), done.stdout + done.stderr


STATIC = {
    "def train_step(w, batch, key)": '@functools.partial(jax.pmap, axis_name="i", '
    "static_broadcasted_argnums=3)\ndef train_step(w, key, batch, training)",
    MAPS: "",
    "p_step(w, batch, key)": "train_step(w, key, batch, True)",
}


@pytest.mark.slow
@pytest.mark.parametrize("is_right", [False, True])
def test_a_decorated_step_with_other_arguments_is_filled_in_without_its_pmap(
    tmp_path, is_right
):
    changes = dict(STATIC)
    if is_right:
        changes["jax.lax.psum(grad"] = "jax.lax.pmean(grad"
    verify = describe_step(tmp_path, "program", changes)
    assert verify["questions"] == [
        "train_step takes (w, key, batch, training): which are state, batch and key?"
    ]
    program = verify["program"]
    for blank, filled in {
        "first_arguments": ARGUMENTS,
        "step": "    return unmapped(state, key, batch, True)\n",
    }.items():
        line = f'    raise SystemExit("verify_step.py: fill in {blank}")\n'
        assert program.count(line) == 1
        program = program.replace(line, filled)
    file = tmp_path / "verify_step.py"
    file.write_text(program)
    done = python(file, env={"XLA_FLAGS": None})
    assert (done.returncode, done.stderr) == (0 if is_right else 1, ""), done.stdout
    assert done.stdout.count("This fits 'sum for mean'") == (not is_right)


@pytest.mark.slow
@pytest.mark.parametrize("is_right", [False, True])
@pytest.mark.parametrize("name", ["program", "12_program"])
def test_the_file_of_a_partial_tells_a_sum_from_a_mean(tmp_path, name, is_right):
    program = describe_partial(tmp_path, name, "nn.relu, learning_rate_fn=schedule")[
        "program"
    ]
    if is_right:
        source = tmp_path / f"{name}.py"
        source.write_text(source.read_text().replace("psum(grad", "pmean(grad"))
    blank = '    raise SystemExit("verify_step.py: fill in first_arguments")\n'
    arguments = ARGUMENTS.replace(", key=keys", "")
    file = tmp_path / "verify_step.py"
    file.write_text(program.replace(blank, arguments))
    done = python(file, env={"XLA_FLAGS": None})
    assert done.returncode == (0 if is_right else 1), done.stdout + done.stderr
    assert done.stderr == ""
    assert done.stdout.count("checks passed.") == is_right
    assert done.stdout.count("This fits 'sum for mean'") == (not is_right)


CHAOS = """import jax
def train_step(state, batch):
    mean = lambda x: jax.lax.pmean(x.mean(), "i")
    z = 0.5 + 0.3 * jax.numpy.sin(mean(jax.numpy.sin(100 * batch)))
    z = jax.lax.fori_loop(0, 60, lambda _, z: 3.9 * z * (1 - z), z.astype("f4"))
    gradient = jax.lax.pmean(batch.mean(0) - state["w"], "i")
    leaves = {name: z for name in ("z_1", "z_2", "z_3", "z_4")}
    return {"w": state["w"] + 0.1 * gradient, **leaves}
p_step = jax.pmap(train_step, axis_name="i")
"""


@pytest.mark.slow
def test_what_the_report_accepts_can_be_pasted_into_the_file(tmp_path):
    """Four leaves hold only rounding noise, so that the advice has two lines."""
    (tmp_path / "chaos.py").write_text(CHAOS)
    program = report_program(str(tmp_path))["verify"]["program"]
    blank = '    raise SystemExit("verify_step.py: fill in first_arguments")\n'
    arguments = ARGUMENTS.replace(", key=keys", "").replace(
        "state=np.ones(3, np.float32)",
        "state=dict(w=np.ones(3, np.float32), z_1=0.3, z_2=0.3, z_3=0.3, z_4=0.3)",
    )
    program = program.replace(blank, arguments)
    file = tmp_path / "verify_step.py"
    file.write_text(program)
    done = python(file, env={"XLA_FLAGS": None})
    assert (done.returncode, done.stderr) == (1, "")
    (advice,) = re.findall(
        r"report\.require\(not_compared=\[.*?\]\)", done.stdout, re.S
    )
    assert advice.count("\n") == 1
    assert program.count("    report.require()\n") == 1
    file.write_text(program.replace("    report.require()\n", f"    {advice}\n"))
    done = python(file, env={"XLA_FLAGS": None})
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert advice in done.stdout  # still said, and accepted


FIRST_ARGUMENTS = """def first_arguments():
    import numpy as np

    state = program.init_state()
    batch = next(program.batches(*program.train_data, seed=0))
    statistics = jax.tree.map(lambda x: np.stack([x] * 8), state.batch_stats)

    def key(update):  # a row for each device
        return jax.random.split(jax.random.fold_in(jax.random.PRNGKey(1), update), 8)

    return dict(state=state.replace(batch_stats=statistics), batch=batch, key=key)


"""


@pytest.mark.nightly
def test_the_file_of_lesson_12_cannot_prove_masks_and_statistics(tmp_path):
    """It trains first, and then compares: with one device, and with the old program.

    The step is correct, but on one device it has other masks and statistics.
    """
    program = report_program(str(LESSON_12))["verify"]["program"]
    start = program.index("def first_arguments():")
    end = program.index("PER_DEVICE = ")
    program = program[:start] + FIRST_ARGUMENTS + program[end:]
    file = tmp_path / "verify_step.py"
    file.write_text(program)
    done = python(file, env={"XLA_FLAGS": None})
    assert (done.returncode, done.stderr) == (1, "")
    assert re.findall("^epoch ([0-4]):", done.stdout, re.MULTILINE) == [*"01234"]
    *_, counted, last = done.stdout.splitlines()
    assert counted.startswith("2 of 4 checks FAILED. ")
    assert last.startswith("NOT PROVEN: on one device the step gives another result")
    assert "each device has its own key, batch_stats: over groups" in last
    assert "over groups of the batch, each with its own, the step gives the" in last
    page = " ".join((FOLDER.parents[1] / "docs" / "porting.md").read_text().split())
    assert "even a correct step ends in `NOT PROVEN`" in page


AVERAGE = "gradients, metrics = lax.pmean((gradients, metrics), "
MISTAKES_OF_LESSON_12 = {
    "none": ("", ""),
    "sum": (AVERAGE, AVERAGE.replace("pmean", "psum")),
    "no average": (AVERAGE, "metrics = lax.pmean(metrics, "),
    "same masks": ('key = jax.random.fold_in(key, lax.axis_index("batch"))', ""),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "mistake",
    [
        "none",
        "sum",
        pytest.param("no average", marks=pytest.mark.nightly),
        pytest.param("same masks", marks=pytest.mark.nightly),
    ],
)
def test_the_reference_on_the_page_passes_for_the_correct_step_alone(tmp_path, mistake):
    old, new = MISTAKES_OF_LESSON_12[mistake]
    source = LESSON_12.read_text()
    assert source.count("EPOCHS = 128, 5") == 1
    assert mistake == "none" or source.count(old) == 1
    source = source.replace("EPOCHS = 128, 5", "EPOCHS = 128, 0").replace(old, new)
    (tmp_path / LESSON_12.name).write_text(source)
    page = (FOLDER.parents[1] / "docs" / "porting.md").read_text()
    program = page.partition("batch norm and dropout:\n\n```py\n")[2]
    program = program.partition("```")[0]
    assert program.count('"lessons/program"') == 1
    file = tmp_path / "verify_step.py"
    file.write_text(program.replace("lessons/program", str(tmp_path)))
    done = python(file, env={"XLA_FLAGS": None})
    last = done.stdout.splitlines()[-1]
    if mistake == "none":
        assert (done.returncode, done.stderr) == (0, "")
        assert page.count(f"\n```\n{last}\n```\n") == 1
    else:
        assert done.returncode == 1
        assert " checks FAILED." in last


def test_the_file_says_what_to_fill_in(tmp_path):
    file = tmp_path / "verify_step.py"
    file.write_text(describe_step(tmp_path, "program", {})["program"])
    done = python(file)
    assert done.returncode == 1
    assert done.stderr == "verify_step.py: fill in first_arguments\n"


@pytest.mark.parametrize("name", [*NAMES, "old_pmap"])
def test_the_programs_of_tests_and_lesson_12(name):
    path = LESSON_12 if name == "old_pmap" else FOLDER / f"{name}.py"
    report = report_program(str(path))
    statuses = {line["status"] for line in report["lines"]}
    assert statuses <= {"fine", "slow", "check"}  # they run
    verify = report["verify"]
    rows = {"hugging_face_tokens": ["dropout_rng"], "old_pmap": ["key", "batch_stats"]}
    if name in rows:
        assert verify["questions"] == []
        assert f"PER_DEVICE = {rows[name]}" in verify["program"]
    else:  # it keeps its state in several arguments
        assert len(verify["questions"]) == 1


def test_status_1_if_a_line_fails_and_fine_lines_only_with_all(tmp_path):
    path = tmp_path / "old.py"
    path.write_text(
        "import jax\nraise SystemExit('this is never run')\n"
        "jax.tree_map(f, jax.pmap(f, 'i')(x))\n"
    )
    status, out, err = entry.run_command("port", path)
    assert status == 1
    assert err.count("\n") == 1
    assert f"first {path}:3 (tree-map): gone" in err
    assert "  gone   tree-map" in out
    assert "docs/constructs.md#tree-map" in out
    assert "    write:     `jax.tree.map`, " in out
    assert "fine   pmap" not in out
    assert "--all lists the fine ones too." in out
    everything = entry.run_command("port", path, "--all").out
    assert "fine   pmap" in everything
    assert "--all" not in everything
    assert "    shard_map: `jax.jit(" in everything
    keys = {
        "path",
        "line",
        "construct",
        "code",
        "status",
        "today",
        "shard_map",
        "jit",
        "link",
    }
    lines = json.loads(entry.run_command("port", path, "--json").out)["lines"]
    assert {frozenset(line) for line in lines} == {frozenset(keys)}
    path.write_text("x = 1\n")
    nothing = "No construct of pmap was found.\n"
    assert entry.run_command("port", path) == (0, nothing, "")


def test_what_stops_the_program_is_listed_first(tmp_path):
    (tmp_path / "main.py").write_text(
        "import jax\np = jax.pmap(f, 'i')\ns, m = p(x)\nm['loss'][0]\n"
        "g = jax.lax.psum(grads, 'i')\nm = jax.tree_map(f, m)\n"
        "m['loss'][0]\njax.shard_map(f, check_rep=False)\njax.random.KeyArray\n"
    )
    text = as_text(report_program(str(tmp_path)), everything=True)
    assert re.findall(r"^  (\w+) +([\w-]+) +docs", text, re.MULTILINE) == [
        ("gone", "tree-map"),
        ("fails", "check-rep"),
        ("gone", "key-array"),
        ("check", "psum-gradients"),
        ("slow", "first-copy"),
        ("fine", "pmap"),
        ("fine", "psum"),
    ]
    assert set(PLACES) == {row.status for row in ROWS.values()}


def test_what_cannot_be_read_is_said(tmp_path):
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "empty").mkdir()
    broken = {
        "b": b"import jax\nprint 'old'\n",
        "c": bytes(range(256)),
        ".hidden/d": b"print 'old'",
    }
    for name, source in ({"a": b"import jax\njax.pmap\n"} | broken).items():
        (tmp_path / f"{name}.py").write_bytes(source)
    status, out, _ = entry.run_command("port", tmp_path)
    assert status == 0
    assert [name for name in "abcd" if f"{name}.py can't be read" in out] == ["b", "c"]
    (tmp_path / "notes.ipynb").write_text("{}")
    said = {
        "b.py": "can't be read",
        "no.py": "is missing: name a Python file or folder, such as . for",
        "notes.ipynb": "is no Python file or folder: try notes.py",
        "empty": "holds no Python",
    }
    for name, words in said.items():
        status, out, err = entry.run_command("port", tmp_path / name)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert words in err
