"""Builds the pieces of an HTML page, and the page around them."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping
from html import escape
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.runs import BadInputError
from walle.analysis.writing.cli import Study
from walle.analysis.writing.sentences import ended, readable

CSS = """
:root { color-scheme: light dark; }
@media (prefers-color-scheme: dark) { img { filter: invert(0.9) hue-rotate(180deg); } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: Canvas; color: CanvasText;
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 0.5rem; border-bottom: 1px solid #8886; }
img { display: block; width: 100%; height: auto; margin: 0.75rem auto; }
ul { padding-left: 1.2rem; margin: 0.5rem 0; }
figure { margin: 0; }
.answer { font-size: 1.1rem; font-weight: 600; }
.chart { height: 27rem; }
.choices { display: flex; flex-wrap: wrap; gap: 0.4rem 1rem; }
select { font: inherit; max-width: 16rem; }
.wide { overflow-x: auto; }
.file { font-family: monospace; white-space: pre-wrap; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 0.8rem 0.2rem 0; vertical-align: top;
  border-bottom: 1px solid #8886; white-space: nowrap; }
td.long { white-space: normal; min-width: 20rem; }
@media (max-width: 640px) { .chart { height: 34rem; } }
@media print {
  body { max-width: none; font-size: 10pt; padding: 0; }
  figure, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .wide { overflow: visible; }
  table { font-size: 7.5pt; }
  details:not([open]) { display: none; }
}
"""
LONG = 60  # a cell with more letters is wrapped


def document(title: str, parts: Iterable[str], *, reload_s: float = 0) -> str:
    """The whole page with the library of its charts; it reloads itself every `reload_s` seconds.

    Raises BadInputError if the library is not installed.
    """
    library = find_spec("plotly")
    if library is None or library.origin is None:
        raise BadInputError("the charts of a report need plotly: pip install plotly")
    plotly = Path(library.origin).with_name("package_data") / "plotly.min.js"
    scripts = [file.read_text("utf-8") for file in (plotly, Path(__file__).with_name("panel.js"))]
    body = "\n".join([*parts, *(f"<script>{script}</script>" for script in scripts)])
    reload = f' data-reload="{reload_s:g}"' if reload_s else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n<body{reload}>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def chart(data: str, kind: str = "figure") -> str:
    """A chart that panel.js draws from JSON: a figure of Plotly, or the data of the panel."""
    data = data.replace("<", "\\u003c")  # no tag and no comment of the page begins in it
    return (
        f'<div class="chart"></div><script type="application/json" class="{kind}">{data}</script>'
    )


def section(title: str, content: str) -> str:
    """A heading with its content."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>"


def paragraph(text: str, style: str = "") -> str:
    """One paragraph, in a class of the style sheet."""
    return f'<p class="{style}">{escape(text)}</p>'


def sentences(texts: Iterable[str]) -> str:
    """A list with one entry per sentence."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>"


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
            style.resize(study.figure)
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
    numbers = folded("The numbers", table(study.table, title))
    return section(title, picture + sentences(texts) + numbers)


def _svg(figure: style.Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return base64.b64encode(buffer.getvalue()).decode()


def table(frame: pd.DataFrame, name: str, links: Mapping[str, str] | None = None) -> str:
    """A table that scrolls if it is wide, and a link to NAME.csv, which has all digits.

    A cell of the first column becomes a link if `links` has it.
    """
    text = readable(frame)
    head = "".join(f"<th>{escape(column)}</th>" for column in map(str, text.columns))
    rows = []
    for row in text.itertuples(index=False, name=None):
        kinds = ["td class=long" if len(cell) > LONG else "td" for cell in row]
        cells = [f"<{k}>{escape(cell)}</td>" for k, cell in zip(kinds, row, strict=True)]
        if links and row[0] in links:
            cells[0] = f'<td><a href="{escape(links[row[0]])}">{escape(row[0])}</a></td>'
        rows.append(f"<tr>{''.join(cells)}</tr>")
    file, numbers = (
        name.lower().replace(" ", "_"),
        quote(frame.to_csv(index=False), errors="replace"),
    )
    return (
        f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
        f'<a download="{escape(file)}.csv" href="data:text/csv,{numbers}">CSV</a>'
    )
