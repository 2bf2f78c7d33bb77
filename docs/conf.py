"""Sphinx's configuration of the documentation site; `make docs` builds it."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

from walle import __version__ as version  # noqa: E402

project = "walle"
release = version
author = "The walle authors"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "from_code"]
exclude_patterns = ["_build", "_ext"]

html_theme = "furo"
html_title = f"walle {release}"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_theme_options = {
    "source_repository": "https://github.com/walle-rl/walle/",
    "source_branch": "main",
    "source_directory": "docs/",
}

myst_heading_anchors = 3
highlight_language = "text"  # of blocks without a language: most are commands with their comments

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
