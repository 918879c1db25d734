"""Build the site from the pages and the executed notebooks: `python docs/build.py`.

It needs `pip install -e ".[site]"` and writes the folder site, whose index.html a
browser opens. `python -m http.server -d site` serves it, because a browser that opens
files can't read the other pages for the excerpts of the search. Notebooks are shown as
they are and never run. Every warning of Sphinx and every link that leads nowhere is an
error.

Where the repository is hosted, its address adds "open in Colab" and a link to the
repository:

    python docs/build.py https://github.com/OWNER/NAME

The variable PMAPDP_REPOSITORY can hold the address, too.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

import check
import stage

HTML = stage.ROOT / "site"


def build(repository: str) -> list[str]:
    """Write the site and return its links that lead nowhere.

    Sphinx's warnings end the program.
    """
    from sphinx.cmd.build import main as sphinx

    os.environ["PMAPDP_REPOSITORY"] = repository
    os.environ["JAX_PLATFORMS"] = "cpu"
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # where Sphinx and MyST-NB also leave what they need themselves
        stage.stage(Path(folder, "source"))
        options = [
            "-q",
            "-W",
            "--keep-going",
            "-c",
            str(Path(__file__).parent / "site"),
            "-d",
            f"{folder}/doctrees",
            "-D",
            f"html_extra_path={folder}/source/four_strategies.html",
        ]
        if status := sphinx([*options, f"{folder}/source", f"{folder}/html"]):
            sys.exit(status)
        shutil.rmtree(HTML, ignore_errors=True)
        shutil.move(f"{folder}/html", HTML)
    for notebook in stage.ROOT.glob(
        "lessons/*.ipynb"
    ):  # what "download" gives is the notebook of the repository
        shutil.copy(notebook, HTML / "_sources" / "lessons")
    return check.broken_links(HTML)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "repository",
        nargs="?",
        default=os.environ.get("PMAPDP_REPOSITORY", ""),
        metavar="ADDRESS",
    )
    started = time.perf_counter()
    broken = build(parser.parse_args().repository.rstrip("/"))
    print(*broken, sep="\n", end="\n" * bool(broken))
    files = [path for path in HTML.rglob("*") if path.is_file()]
    pages, size = (
        sum(path.suffix == ".html" for path in files),
        sum(path.stat().st_size for path in files) / 1e6,
    )
    seconds = time.perf_counter() - started
    size_and_time = f"{pages} pages, {size:.1f} MB, {seconds:.0f} s"
    print(f"{HTML}: {size_and_time}, {len(broken)} broken links")
    print(f"python -m http.server -d {HTML} serves it, with excerpts in its search.")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
