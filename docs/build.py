"""Build the site from the pages and the executed notebooks: `python docs/build.py`.

It needs `pip install -e ".[site]"`, and writes the folder site. Open its index.html in
a browser, or serve it by `python -m http.server -d site`: only then can the search show
excerpts, because a page opened as a file can't read the others. Notebooks are shown as
they are, and never run. Every warning from Sphinx and every broken link is an error.

With the repository's address, the site has "open in Colab" and a link to the
repository. The variable PMAPDP_REPOSITORY can also hold the address:

    python docs/build.py https://github.com/OWNER/NAME
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
    """Write the site, and return its broken links. A warning from Sphinx ends it."""
    from sphinx.cmd.build import main as sphinx

    os.environ["PMAPDP_REPOSITORY"] = repository
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Sphinx and MyST-NB also keep their own files in this folder.
    with tempfile.TemporaryDirectory() as folder:
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
    # "Download" gives the repository's notebook.
    for notebook in stage.ROOT.glob("lessons/*.ipynb"):
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
    pages = sum(path.suffix == ".html" for path in files)
    size = sum(path.stat().st_size for path in files) / 1e6
    seconds = time.perf_counter() - started
    size_and_time = f"{pages} pages, {size:.1f} MB, {seconds:.0f} s"
    print(f"{HTML}: {size_and_time}, {len(broken)} broken links")
    print(f"python -m http.server -d {HTML} serves it, with excerpts in its search.")
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
