"""Gives every script its flags; loads the runs, writes figure and numbers, prints sentences."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.loading.directories import BadInputError
from walle.analysis.runs import Sweep, load

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")


class Study(NamedTuple):
    """The result of a script.

    Attributes:
        figure: the figure, drawn but not written.
        table: the numbers behind the figure; a column `x` may have `x_low` and `x_high` beside it.
        sentences: the findings in words.
        points: every point of the figure, where the table is only a summary; else None.
    """

    figure: Figure
    table: pd.DataFrame
    sentences: list[str]
    points: pd.DataFrame | None = None


def parser(
    description: str | None, *, by: str | None = "sampler.n", formats: tuple[str, ...] = FORMATS
) -> argparse.ArgumentParser:
    """A parser with the flags that all scripts share."""
    p = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "sweep",
        nargs="*",
        type=Path,
        metavar="SWEEP_DIR",
        help="sweeps or single runs (default: the newest sweep under ./multirun)",
    )
    p.add_argument(
        "-o",
        "--output",
        type=lambda text: _path_ending(text, formats),
        metavar="FILE",
        help=f"the file to write: {', '.join(formats)} (default: in the sweep's directory)",
    )
    p.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="the file for the numbers behind the figure (default: beside the figure)",
    )
    p.add_argument(
        "--by",
        default=by,
        metavar="KEY",
        help=f"the configuration key to compare by (default: {by or 'sampler.n, or what varies'})",
    )
    p.add_argument(
        "--warmup",
        type=_count,
        default=1,
        metavar="K",
        help="leave the first K iterations of each run out of mean times (default: 1)",
    )
    p.add_argument("--title", help="write a title above the figure")
    p.add_argument("--show", action="store_true", help="open the figure in a viewer")
    return p


def guard(name: str, action: Callable[[], None]) -> int:
    """Runs `action`; bad input becomes one line on stderr, after `name`, and exit code 2."""
    try:
        action()
    except BadInputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def run(
    args: argparse.Namespace,
    name: str,
    study: Callable[[Sweep], Study],
    *,
    figure: str | None = None,
) -> int:
    """Loads the runs, studies them, writes and prints the result; returns the exit code.

    Args:
        args: the parsed flags.
        name: the script's name, which stands before an error.
        study: the script's work.
        figure: the name of the figure's file without its ending; by default `name`.
    """
    return guard(name, lambda: _run(args, figure or name, study))


def _run(args: argparse.Namespace, name: str, study: Callable[[Sweep], Study]) -> None:
    sweep = load(*args.sweep)
    with style.paper():
        result = _studied(sweep, study)
        style.finish(result.figure, args.title)
        path = figure_path(args, name, sweep)
        numbers = args.csv or path.with_suffix(".csv")
        _write(result, path, numbers)
    _report(sweep, result, newest=not args.sweep)
    print(f"figure:  {path}\nnumbers: {numbers}")
    open_viewer(name, path.resolve().as_uri(), wanted=args.show)


def _studied(sweep: Sweep, study: Callable[[Sweep], Study]) -> Study:
    """The study; the error of a failed one also names the runs that were left out."""
    try:
        return study(sweep)
    except BadInputError as error:
        if not sweep.left_out:
            raise
        raise BadInputError(" ".join([ended(error), *account(sweep)])) from error


def open_viewer(name: str, address: str, *, wanted: bool) -> None:
    """Opens a file or page in the desktop's viewer if `wanted`."""
    if wanted and not webbrowser.open(address):
        print(f"{name}: --show: no viewer found for {address}", file=sys.stderr)


def figure_path(args: argparse.Namespace, name: str, sweep: Sweep) -> Path:
    """The path of the figure: -o, or figures/NAME.png in the directory of the first sweep."""
    return args.output or sweep.paths[0] / "figures" / f"{name}.png"


def write_text(path: Path, text: str) -> None:
    """Writes a text file; makes the folders above it.

    Raises:
        BadInputError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise BadInputError(_unwritable(error)) from error


def account(sweep: Sweep) -> list[str]:
    """Sentences about the runs: how many were used, which were left out and why, the notes."""
    used, out = len(sweep.runs), len(sweep.left_out)
    text = [f"{used} of {used + out} runs used."]
    text += [f"Left out: {run.name}: {run.reason}." for run in sweep.left_out]
    return text + [f"{note}." for note in sweep.notes]


def ended(sentence: object) -> str:
    """The sentence with a full stop, unless it ends in a mark already."""
    text = str(sentence)
    return text if text.endswith((".", "?")) else f"{text}."


def without_lone_line(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Drops `line` (or the given columns) where all rows have the same value."""
    lone = [c for c in columns or ("line",) if table[c].nunique() == 1]
    return table.drop(columns=lone)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table as text: intervals in brackets, four significant digits, nan as an empty cell.

    Large numbers keep all their digits before the point: 240000 steps, not 2.4e+05.
    """
    bounds = {c + end for c in table.columns for end in ("_low", "_high")}
    shown = {}
    for name in table.columns:
        if name in bounds:
            continue
        if f"{name}_low" in table:
            ranges = zip(table[name], table[f"{name}_low"], table[f"{name}_high"], strict=True)
            shown[name] = [_with_range(*r) for r in ranges]
        else:
            shown[name] = [_plain(value) for value in table[name]]
    return pd.DataFrame(shown)


def _report(sweep: Sweep, result: Study, *, newest: bool) -> None:
    where = " ".join(str(path) for path in sweep.paths)
    print(f"{where}{' (the newest sweep)' if newest else ''}\n")
    print(readable(result.table).to_string(index=False), end="\n\n")
    for sentence in [*result.sentences, *account(sweep)]:
        print(sentence)


def _write(result: Study, figure: Path, numbers: Path) -> None:
    try:
        style.save(result.figure, figure)
    except OSError as error:
        raise BadInputError(_unwritable(error)) from error
    points = result.table if result.points is None else result.points
    write_text(numbers, points.to_csv(index=False))


def _unwritable(error: OSError) -> str:
    return f"cannot write {error.filename}: {error.strerror}; choose another place with -o"


def _path_ending(text: str, endings: tuple[str, ...]) -> Path:
    path = Path(text)
    if path.suffix not in endings:
        raise argparse.ArgumentTypeError(f"{text!r} has to end in {' or '.join(endings)}")
    return path


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _with_range(value: float, low: float, high: float) -> str:
    if low != low:
        return _plain(value)
    return f"{_number(value)} [{_number(low)}, {_number(high)}]"


def _number(value: float) -> str:
    return f"{value:.0f}" if 1e4 <= abs(value) < 1e12 else f"{value:.4g}"


def _plain(value: object) -> str:
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return "yes" if value else ""
    if isinstance(value, float):
        return "" if value != value else _number(value)
    return str(value)
