"""Make docs/api.md from the docstrings of the public names.

`python docs/api.py > docs/api.md`.
"""

import ast
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pmapdp.config import Config

FOLDER = Path(__file__).parent
TOP = """# API

Most programs need only these five names:

```python
from pmapdp.config import Config  # the settings
from pmapdp.data.dataset import DataSet, Split  # your arrays
from pmapdp.loss import MetricSums  # what a loss of your own returns
from pmapdp.train import train  # trains, or resumes a run
```

Your editor shows the same docstrings, and in them which mistakes raise a
[`UserError`](statuses.md#your-own-program). Until version 1.0 the names on this page
may change, and the [changelog](../CHANGELOG.md) then says so. A run may have to be
finished with the version that began it. Anything else may change without notice. All
entries:
"""
# What the examples need. Pasted one after the other, they run.
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
# The entries of the page, below their headings.
SECTIONS = {
    "Training": [
        "pmapdp.data.dataset.Split",
        "pmapdp.data.dataset.DataSet",
        "pmapdp.config.Config",
        "pmapdp.train.train",
        "pmapdp.train.Result",
    ],
    "Your loss and layers": [
        "pmapdp.loss.MetricSums",
        "pmapdp.layers.current_context",
    ],
    "After training": [
        "pmapdp.evaluate.evaluate_run",
        "pmapdp.export.export_run",
        "pmapdp.export.load_exported",
    ],
    "Your own training step": [
        "pmapdp.verify.one_device",
        "pmapdp.verify.old_program",
        "pmapdp.verify.verify",
        "pmapdp.verify.Layout",
    ],
    "Devices": ["pmapdp.devices.simulate"],
}
# The page that shows the entries below a heading in a whole program.
GUIDES = {
    "Training": "[Your model, your data](custom.md) trains a model in two files.",
    "Your loss and layers": "[The reference](custom_reference.md) has many losses.",
    "After training": "[Exported models](export.md) also run without pmapdp.",
    "Your own training step": "[Verify](verify.md) has a program to begin with.",
    "Devices": "[Simulated devices](simulated_devices.md) need many threads.",
}
# Names that fewer programs need, each with the page that shows it. None: no page does,
# so the list says what it is.
MORE_NAMES = {
    "pmapdp.data.dataset.Texts": "custom_reference.md",
    "pmapdp.custom.images.ImageFolder": "custom_reference.md",
    "pmapdp.registry.load_data": "export.md",
    "pmapdp.train.load_run": None,
    "pmapdp.state.TrainState": "custom.md",
    "pmapdp.layers.Context": "custom_reference.md",
    "pmapdp.models.axes": "meshes.md",
    "pmapdp.models.axis_names": "meshes.md",
    "pmapdp.export.Exported": "export.md",
    "pmapdp.verify.Report": "verify.md",
    "pmapdp.compare.strategies.compare_strategies": None,
    "pmapdp.compare.results.Measurement": None,
    "pmapdp.scaling.predict": "speed.md",
    "pmapdp.scaling.Prediction": "speed.md",
    "pmapdp.scaling.Hardware": "speed.md",
    "pmapdp.scaling.Level": "speed.md",
    "pmapdp.errors.UserError": "statuses.md",
    "pmapdp.errors.DivergedError": "statuses.md",
    "pmapdp.errors.StoppedError": "statuses.md",
}
# A setting's help text is beside its flag, so this page doesn't repeat it.
CONFIG_FIELDS = """Each field is a flag of `pmapdp.train`, with underscores for hyphens.
[Flags](flags.md#the-ten-flags-you-need-first) begins with the ten that you need first,
and says what each field does and its default. So does `help(Config)`."""
TITLES = {
    "Args:": "Arguments",
    "Attributes:": "Attributes",
    "Returns:": "Returns",
    "Raises:": "Raises",
}
EXAMPLE = "Example:\n"
WIDTH = 88  # columns of a call
USER_ERROR = re.compile(r"^    UserError: .*\n?(?:      .*\n?)*", re.MULTILINE)
ITEM = re.compile(r"(\w+): (.*)", re.DOTALL)


def public_names() -> list[str]:
    """Return the names of the entries, and then the others."""
    entries = [name for names in SECTIONS.values() for name in names]
    return [*entries, *MORE_NAMES]


def types_of(public: Any) -> dict[str, str]:
    """Return the type of each parameter or field, as the source has it."""
    source = textwrap.dedent(inspect.getsource(public))
    definition = ast.parse(source).body[0]
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
    if inspect.isfunction(parameter.default):
        return f"{parameter.name}={parameter.default.__name__}"
    return str(parameter.replace(annotation=parameter.empty)).replace("'", '"')


def signature_of(name: str, public: Any) -> str:
    """Return the call of a function or class. The list below it has the types."""
    texts = []
    for parameter in inspect.signature(public).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        texts.append(short_parameter(parameter))
    call = f"{name}({', '.join(texts)})"
    if len(call) <= WIDTH:
        return call
    indent = "    "
    lines = textwrap.fill(
        f"{', '.join(texts)},", WIDTH, initial_indent=indent, subsequent_indent=indent
    )
    return f"{name}(\n{lines}\n)"


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
        declared = ""
        if types.get(name, "Any") != "Any":
            declared = f" (`{types[name]}`)"
        lines.append(f"- `{name}`{declared}: {' '.join(meaning.split())}")
    return "\n".join(lines)


def summary_of(public: Any) -> str:
    """Return a docstring's first paragraph, in one line."""
    summary, _, _ = inspect.getdoc(public).partition("\n\n")
    return " ".join(summary.split())


def example_of(public: Any) -> str:
    """Return the example in a docstring, which is its end, or nothing."""
    _, _, example = inspect.getdoc(public).partition(EXAMPLE)
    return textwrap.dedent(example).strip()


def describe_details(public: Any) -> str:
    """Return what follows a docstring's summary as Markdown: its paragraphs, and its
    sections as lists. A `UserError` is left out, because nearly every name raises it.
    """
    if public is Config:
        return CONFIG_FIELDS
    types = types_of(public)
    text, _, _ = inspect.getdoc(public).partition(EXAMPLE)
    _, *details = text.strip().split("\n\n")
    paragraphs = []
    for paragraph in details:
        heading, _, rest = paragraph.partition("\n")
        if heading == "Raises:":
            rest = USER_ERROR.sub("", rest)
            if not rest.strip():
                continue
        if heading in TITLES:
            items = describe_items(rest, types)
            space = "\n\n" if items.startswith("- ") else ": "
            paragraphs.append(f"**{TITLES[heading]}**{space}{items}")
        else:
            paragraphs.append(paragraph)
    return "\n\n".join(paragraphs)


def members_of(public: Any) -> Iterator[tuple[str, str]]:
    """Yield the public methods and properties of a class, each with its docstring's
    first line.
    """
    for name, member in vars(public).items():
        if name.startswith("_"):
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


def describe(path: str) -> str:
    """Return the part of the page about one name."""
    public = pkgutil.resolve_name(path)
    module, _, name = path.rpartition(".")
    text = f"### {name}\n\n{summary_of(public)}\n\n"
    text += f"```python\nfrom {module} import {name}\n"
    if public is not Config:  # its fields are in a table
        text += f"\n{signature_of(name, public)}\n"
    text += "```\n"
    if details := describe_details(public):
        text += f"\n{details}\n"
    members = list(members_of(public)) if inspect.isclass(public) else []
    if members:
        text += "\n**Methods and properties**\n\n"
        text += "".join(f"- `{call}`: {line}\n" for call, line in members)
    if example := example_of(public):
        text += f"\n**Example**\n\n```python\n{example}\n```\n"
    return text


def contents() -> str:
    """Return a list of the headings, each with its names."""
    text = ""
    for title, paths in SECTIONS.items():
        names = [path.rpartition(".")[2] for path in paths]
        links = [f"[`{name}`](#{name.lower()})" for name in names]
        text += f"- {title}: {', '.join(links)}\n"
    return text


def list_more_names() -> str:
    """Return a table of the names that have no entry, by the page that shows them, and
    a list of those that no page shows.
    """
    names_by_page: dict[str, list[str]] = {}
    text = ""
    for path, shown_on in MORE_NAMES.items():
        if shown_on is None:
            text += f"- `{path}`: {summary_of(pkgutil.resolve_name(path))}\n"
        else:
            names_by_page.setdefault(shown_on, []).append(f"`{path}`")
    table = "| page | names |\n| --- | --- |\n"
    for shown_on, names in names_by_page.items():
        table += f"| [{title_of(shown_on)}]({shown_on}) | {', '.join(names)} |\n"
    return f"{table}\nThese are on no page:\n\n{text}"


def title_of(file: str) -> str:
    """Return the heading of a page."""
    first_line, _, _ = (FOLDER / file).read_text(encoding="utf-8").partition("\n")
    return first_line.removeprefix("# ")


def page() -> str:
    """Return the text of docs/api.md."""
    parts = [TOP, contents() + "- [More names](#more-names)\n"]
    parts.append(
        "The examples run one after the other, after these lines:\n\n"
        f"```python{SETUP}```\n"
    )
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n\n{GUIDES[title]}\n")
        parts += [describe(name) for name in names]
    parts.append("## More names\n\nThese pages show how to use them:\n")
    parts.append(list_more_names())
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
