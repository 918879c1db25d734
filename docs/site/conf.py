"""Tell Sphinx how to show the site. `docs/build.py` lays out its pages, and calls it.

Sphinx with MyST-NB and sphinx-book-theme is what the documentation of JAX, Flax, Optax
and Orbax is made with. The theme brings the search, the dark mode, the previous and the
next page.
"""

import os
import sys
from pathlib import Path
from typing import Any

from docutils import nodes

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from pmapdp import __version__

REPOSITORY = os.environ.get("PMAPDP_REPOSITORY", "")

project = "pmapdp"
author = "The pmapdp contributors"
release = version = __version__
extensions = ["myst_nb"]
root_doc = "index"
html_theme = "sphinx_book_theme"
html_title = f"pmapdp {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_sourcelink_suffix = ""
html_show_copyright = False
html_theme_options: dict[str, Any] = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "home_page_in_toc": True,
    "use_download_button": True,
    "navigation_with_keys": False,
}
if REPOSITORY:
    html_theme_options |= {
        "repository_url": REPOSITORY,
        "repository_branch": "main",
        "use_repository_button": True,
        "launch_buttons": {"colab_url": "https://colab.research.google.com"},
    }

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Predict, then unfold the {type}"
nb_code_prompt_hide = "Fold the {type}"
highlight_language = "text"
smartquotes = False  # they make a dash of the two hyphens of a flag


def dashes(app: Any, doctree: Any, name: str) -> None:
    """Put the dash between a name and its description, which `smartquotes` would."""
    for text in list(doctree.findall(nodes.Text)):
        if text == " -- ":
            text.parent.replace(text, nodes.Text(" – "))


def setup(app: Any) -> None:
    """Connect these functions to Sphinx, which calls this one."""
    app.connect("doctree-resolved", dashes)
