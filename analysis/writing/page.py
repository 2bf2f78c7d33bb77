"""Builds the pieces of an HTML page, and the page around them."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping
from html import escape

import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.runs import BadInputError
from walle.analysis.writing.cli import Study
from walle.analysis.writing.sentences import ended, readable

CSS = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 52rem; color: #1a1a1a; background: #fff;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid #ccc; }
img { display: block; width: 100%; height: auto; margin: 0.75rem auto; }
ul { padding-left: 1.2rem; margin: 0.5rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0; vertical-align: top;
  border-bottom: 1px solid #eee; }
th { border-bottom: 1px solid #888; white-space: nowrap; }
summary { cursor: pointer; color: #0b5394; padding: 0.4rem 0; }
a { color: #0b5394; }
@media print {
  body { max-width: none; font-size: 10pt; padding: 0; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .wide { overflow: visible; }
  table { font-size: 7.5pt; }
  details:not([open]) { display: none; }
}
figure { margin: 0; }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """The whole page."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def section(title: str, content: str) -> str:
    """A heading with its content."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def paragraph(text: str) -> str:
    """One paragraph."""
    return f"<p>{escape(text)}</p>"


def sentences(texts: Iterable[str]) -> str:
    """A list with one sentence an entry."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


def verbatim(text: str) -> str:
    """Text in its own lines, such as a file's content."""
    return f'<div class="wide"><pre>{escape(text)}</pre></div>'


def folded(title: str, content: str) -> str:
    """Content that a click on its title opens."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def figure(title: str, draw: Callable[[], Study], written: set[str]) -> str:
    """A section with a figure, its numbers, and the sentences that are not `written` yet.

    On a small screen the panels stand below one another.
    """
    try:
        with style.paper():
            study = draw()
            style.finish(study.figure, None)
            wide, inches = _svg(study.figure), study.figure.get_figwidth()
            style.stack(study.figure)
            narrow = _svg(study.figure)
    except BadInputError as error:
        return section(title, paragraph(f"Not drawn: {ended(error)}"))
    texts = [text for text in (*study.sentences, *study.notes) if text not in written]
    written.update(texts)
    data, about = "data:image/svg+xml;base64,", escape(f"{title}: {' '.join(texts)}")
    picture = (
        f'<figure><picture><source media="screen and (max-width: 600px)" srcset="{data}{narrow}">'
        f'<img src="{data}{wide}" style="max-width: {1.25 * inches:g}in" alt="{about}"></picture>'
        "</figure>"
    )
    numbers = folded("The numbers", table(readable(study.table)))
    return section(title, picture + sentences(texts) + numbers)


def _svg(figure: style.Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return base64.b64encode(buffer.getvalue()).decode()


def table(frame: pd.DataFrame, links: Mapping[str, str] | None = None) -> str:
    """A table; a cell of the first column becomes a link if `links` has it; nan is left empty."""
    head = "".join(f"<th>{escape(str(name))}</th>" for name in frame.columns)
    rows = []
    for row in frame.itertuples(index=False, name=None):
        cells = [
            ("" if value != value else f"{value:,.6g}")
            if isinstance(value, float)
            else escape(str(value))
            for value in row
        ]
        if links and str(row[0]) in links:
            cells[0] = f'<a href="{escape(links[str(row[0])])}">{cells[0]}</a>'
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
