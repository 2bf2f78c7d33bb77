"""Directives whose content comes from the code, and links and docstrings as Sphinx wants them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from settings_tables import CONF, LAUNCHER, ROOT, markdown
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

FIGURES = Path("_build") / "gallery"  # below docs/; `make docs` draws them
COMMITTED = Path("figures")
FLAGS = {  # of the scripts that need more than a sweep
    "compare": " --by sampler.max_lag=0,1",
    "plan": "/0",  # one of its runs
    "speedup": " --by sampler.n --end-to-end",
}
SOURCE = "https://github.com/walle-rl/walle/blob/main"
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}  # include the files
_LINK = re.compile(r"\]\(\.\./([^)#]+)")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


class Settings(SphinxDirective):
    """A table of every setting with its default and its comment."""

    def run(self) -> list[nodes.Node]:
        """Parses the generated Markdown."""
        for file in (*CONF.rglob("*.yaml"), LAUNCHER):
            self.env.note_dependency(str(file))
        return self.parse_text_to_nodes(markdown(), allow_section_headings=True)


class Gallery(SphinxDirective):
    """A figure of every script that draws one, with its command."""

    def run(self) -> list[nodes.Node]:
        """Parses the generated Markdown."""
        docs = Path(self.env.srcdir)
        for file in (Path(__file__), *scripts(), docs / FIGURES / "ready"):
            self.env.note_dependency(str(file))
        text = "\n\n".join(_entry(docs, script) for script in scripts())
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def scripts() -> list[Path]:
    """The scripts of analysis/ that draw a figure."""
    found = sorted((ROOT / "analysis").glob("[a-z]*.py"))
    return [path for path in found if "\ndef study(" in path.read_text(encoding="utf-8")]


def sweep_command() -> str:
    """The command of the sweep that the figures are drawn from, as the page prints it."""
    page = (Path(__file__).parents[1] / "gallery.md").read_text(encoding="utf-8")
    return page.split("```")[1].strip().replace("\\\n", " ")


def command_of(script: Path) -> str:
    """The command that draws a script's figure from the gallery's sweep."""
    return f"walle {script.stem} multirun/gallery{FLAGS.get(script.stem, '')}"


def _entry(docs: Path, script: Path) -> str:
    """A heading, the first line of the script's docstring, its command, its figure if there is."""
    name = script.stem
    about = script.read_text(encoding="utf-8").split('"""')[1].splitlines()[0]
    figures = [place / f"{name}.png" for place in (FIGURES, COMMITTED)]
    found = next((figure for figure in figures if (docs / figure).exists()), None)
    shown = f"![{about}](/{found.as_posix()})" if found else ""
    return f"## {name}\n\n{about}\n\n```\n{command_of(script)}\n```\n\n{shown}"


def link_out(_app: Sphinx, _page: str, content: list[str]) -> None:
    """Lets links to files outside of docs/ lead to their page, or to the repository."""
    content[0] = _LINK.sub(lambda m: f"]({PAGES.get(m[1]) or f'{SOURCE}/{m[1]}'}", content[0])


def as_restructured_text(_app: Sphinx, what: str, *about: Any) -> None:
    """Writes `code` as ``code`` and keeps a lone * in a docstring; before napoleon reads it.

    Napoleon takes the words before a colon in a property's first line for its type.
    """
    lines: list[str] = about[-1]
    if what == "property":
        lines[0] = lines[0].replace(": ", ", ", 1)
    lines[:] = [
        _CODE.sub(r"``\1``", line.replace("*", "\\*") if "`" not in line else line)
        for line in lines
    ]


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the directives with Sphinx."""
    app.add_directive("settings", Settings)
    app.add_directive("gallery", Gallery)
    app.connect("source-read", link_out)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)
    return {"parallel_read_safe": True}
