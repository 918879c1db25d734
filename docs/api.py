"""Make docs/api.md from the docstrings of the public names.

`python docs/api.py > docs/api.md`.
"""

import ast
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from pmapdp.config import Config

TOP = """# API

This page has what your editor shows for the names that programs import.
`python docs/api.py` makes it from the docstrings. Import each name from its module,
because the package itself exports nothing. What isn't on this page may change without
notice.
"""
# What the examples of all names need. Pasted one after the other, they run.
SETUP = """
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from pmapdp.devices import simulate

simulate(8)  # eight devices on a CPU, before JAX starts


class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, inputs):
        return self.out(inputs)


inputs = np.random.default_rng(0).normal(size=(256, 6)).astype(np.float32)
labels = inputs[:, :3].argmax(1)
"""
# A title and the names.
SECTIONS = {
    "Data": [
        "pmapdp.data.dataset.Split",
        "pmapdp.data.dataset.DataSet",
        "pmapdp.data.dataset.Texts",
        "pmapdp.custom.images.ImageFolder",
        "pmapdp.registry.load_data",
    ],
    "Training": [
        "pmapdp.config.Config",
        "pmapdp.train.train",
        "pmapdp.train.Result",
    ],
    "Your loss and layers": [
        "pmapdp.loss.MetricSums",
        "pmapdp.layers.current_context",
        "pmapdp.layers.Context",
        "pmapdp.models.axes",
        "pmapdp.models.axis_names",
    ],
    "After training": [
        "pmapdp.evaluate.evaluate_run",
        "pmapdp.train.load_run",
        "pmapdp.export.export_run",
        "pmapdp.export.load_exported",
        "pmapdp.export.Exported",
    ],
    "Verifying a step": [
        "pmapdp.verify.verify",
        "pmapdp.verify.one_device",
        "pmapdp.verify.old_program",
        "pmapdp.verify.Layout",
        "pmapdp.verify.Report",
    ],
    "Comparing strategies": [
        "pmapdp.compare.strategies.compare_strategies",
        "pmapdp.compare.results.Measurement",
    ],
    "Predicting": [
        "pmapdp.scaling.predict",
        "pmapdp.scaling.Prediction",
        "pmapdp.scaling.Hardware",
        "pmapdp.scaling.Level",
    ],
    "Devices and errors": [
        "pmapdp.devices.simulate",
        "pmapdp.errors.UserError",
        "pmapdp.errors.DivergedError",
        "pmapdp.errors.StoppedError",
    ],
}
# You get these from a function, so their call isn't shown.
RESULTS = ("Result", "Context", "Exported", "Report", "Measurement", "Prediction")
# Methods from which a report writes its text.
PARTS_OF_REPORTS = ("describe_rows", "describe_compared", "conclude")
# In place of some sixty attributes, which the page of flags has.
FIELDS = """Every flag of `python -m pmapdp.train` is a field: `--learning-rate 0.1` is
`Config(learning_rate=0.1)`. [Flags](flags.md) has their types, limits and defaults. For
other values, write `dataclasses.replace(config, epochs=5)`."""
HEADINGS = ("Args:", "Attributes:", "Returns:", "Raises:")
EXAMPLE = "Example:\n"
WIDEST_CALL = 60  # characters of a call in one line, so that a phone shows it
ITEM = re.compile(r"(\w+): (.*)", re.DOTALL)


def public_names() -> list[str]:
    """Return all names of the page."""
    return [name for names in SECTIONS.values() for name in names]


def definition_of(public: Any) -> ast.ClassDef | ast.FunctionDef:
    """Return the syntax of a function or class."""
    source = textwrap.dedent(inspect.getsource(public))
    return ast.parse(source).body[0]


def types_of(public: Any) -> dict[str, str]:
    """Return the type of each parameter or field, as the source has it."""
    definition = definition_of(public)
    types = {}
    for node in ast.walk(definition):
        if isinstance(node, ast.arg) and node.annotation:
            types.setdefault(node.arg, ast.unparse(node.annotation))
    if isinstance(definition, ast.ClassDef):
        for node in definition.body:
            if isinstance(node, ast.AnnAssign):
                types[node.target.id] = ast.unparse(node.annotation)
    return types


def short_parameter(parameter: inspect.Parameter) -> str:
    """Return a parameter as one writes it, without its type."""
    default = parameter.default
    if str(default) == "<factory>":
        return f"{parameter.name}=..."
    if inspect.isfunction(default):
        return f"{parameter.name}={default.__name__}"
    return str(parameter.replace(annotation=parameter.empty)).replace("'", '"')


def signature_of(name: str, public: Any) -> str:
    """Return the call of a function or class, without types.

    `train(config, *, model=None)`.
    """
    texts = []
    for parameter in inspect.signature(public).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        texts.append(short_parameter(parameter))
    call = f"{name}({', '.join(texts)})"
    if len(call) <= WIDEST_CALL:
        return call
    lines = [f"    {text}," for text in texts]
    return "\n".join([f"{name}(", *lines, ")"])


def describe_items(text: str, types: dict[str, str]) -> str:
    """Return `name: meaning` lines as a list, with the types.

    Any other text as it is.
    """
    text = textwrap.dedent(text).strip()
    items = re.split(r"\n(?=\S)", text)
    matches = [ITEM.fullmatch(item) for item in items]
    if not all(matches):
        return " ".join(text.split())
    lines = []
    for match in matches:
        name, meaning = match.groups()
        declared = f" (`{types[name]}`)" if name in types else ""
        lines.append(f"- `{name}`{declared}: {' '.join(meaning.split())}")
    return "\n".join(lines)


def example_of(public: Any) -> str:
    """Return the example in a docstring, which is its end, or nothing."""
    _, _, example = inspect.getdoc(public).partition(EXAMPLE)
    return textwrap.dedent(example).strip()


def describe_docstring(public: Any) -> str:
    """Return a docstring as Markdown: its paragraphs, and its sections as lists."""
    if public is Config:
        summary, _, _ = inspect.getdoc(public).partition("\n\n")
        return f"{summary}\n\n{FIELDS}"
    types = types_of(public)
    text, _, _ = inspect.getdoc(public).partition(EXAMPLE)
    paragraphs = []
    for paragraph in text.strip().split("\n\n"):
        heading, _, rest = paragraph.partition("\n")
        if heading in HEADINGS:
            title = heading.removesuffix(":")
            paragraphs.append(f"**{title}**\n\n{describe_items(rest, types)}")
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def members_of(public: Any) -> Iterator[tuple[str, str]]:
    """Yield the public methods and properties of a class, each with its docstring's
    first line.
    """
    for name, member in vars(public).items():
        if name.startswith("_") or name in PARTS_OF_REPORTS:
            continue
        function: Callable[..., Any] | None = None
        call = f".{name}"
        if inspect.isfunction(member):
            function = member
            parameters = list(inspect.signature(member).parameters.values())[1:]
            call += f"({', '.join(map(short_parameter, parameters))})"
        elif isinstance(member, property):
            function = member.fget
        if function and function.__module__ == public.__module__ and function.__doc__:
            yield call, function.__doc__.splitlines()[0]


def is_error(public: Any) -> bool:
    """Return True for the class of an exception."""
    return inspect.isclass(public) and issubclass(public, BaseException)


def describe(path: str) -> str:
    """Return the part of the page about one name."""
    public = pkgutil.resolve_name(path)
    module, _, name = path.rpartition(".")
    text = f"### {name}\n\n"
    text += f"```python\nfrom {module} import {name}\n"
    # The flags have a page of their own, and nobody raises the errors.
    if name not in ("Config", *RESULTS) and not is_error(public):
        text += f"\n{signature_of(name, public)}\n"
    text += f"```\n\n{describe_docstring(public)}\n"
    members = list(members_of(public)) if inspect.isclass(public) else []
    if members:
        text += "\n**Methods and properties**\n\n"
        text += "".join(f"- `{call}`: {line}\n" for call, line in members)
    if example := example_of(public):
        text += f"\n**Example**\n\n```python\n{example}\n```\n"
    return text


def contents() -> str:
    """Return a list of the names, each with its docstring's first line."""
    lines = []
    for title, names in SECTIONS.items():
        lines.append(f"- **{title}**\n")
        for path in names:
            public = pkgutil.resolve_name(path)
            summary, _, _ = inspect.getdoc(public).partition("\n\n")
            name = public.__name__
            line = " ".join(summary.split())
            lines.append(f"  - [`{name}`](#{name.lower()}): {line}\n")
    return "".join(lines)


def page() -> str:
    """Return the text of docs/api.md."""
    parts = [TOP, contents()]
    parts.append(
        "The examples run one after the other, after these lines:\n\n"
        f"```python{SETUP}```\n"
    )
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [describe(name) for name in names]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
