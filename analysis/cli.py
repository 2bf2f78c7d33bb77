"""What all the scripts share: the flags, the account of the runs, where figures are written."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from analysis.runs import Sweep

FORMATS = (".png", ".svg", ".pdf")


class Study(NamedTuple):
    """What a script found.

    Attributes:
        figure: drawn, not yet written.
        table: the numbers behind the figure; a column `x` may have `x_low` and `x_high` beside it.
        sentences: what the figure says, in words.
        points: every point drawn, where the table is only a summary of them.
    """

    figure: Figure
    table: pd.DataFrame
    sentences: list[str]
    points: pd.DataFrame | None = None


def parser(
    description: str | None, *, by: str = "sampler.n", formats: tuple[str, ...] = FORMATS
) -> argparse.ArgumentParser:
    """A parser with the flags that every script has."""
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
        help=f"where to write: {', '.join(formats)} (default: in the sweep's directory)",
    )
    p.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="the numbers behind the figure (default: beside it)",
    )
    p.add_argument(
        "--by",
        default=by,
        metavar="KEY",
        help=f"the configuration key to compare by (default: {by})",
    )
    p.add_argument(
        "--warmup",
        type=_count,
        default=1,
        metavar="K",
        help="leave out the first K iterations of each run where times are averaged (default: 1)",
    )
    p.add_argument("--title", help="a title above the figure")
    p.add_argument("--show", action="store_true", help="open the figure in a viewer")
    return p


def guard(name: str, action: Callable[[], None]) -> int:
    """Runs `action`; bad input is one line on stderr and exit code 2."""
    from analysis.directories import BadInputError

    try:
        action()
    except BadInputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return 0


def run(args: argparse.Namespace, name: str, study: Callable[[Sweep], Study]) -> int:
    """Loads, studies, prints and writes; returns the exit code (2 for bad input)."""
    return guard(name, lambda: _run(args, name, study))


def _run(args: argparse.Namespace, name: str, study: Callable[[Sweep], Study]) -> None:
    from analysis import style
    from analysis.runs import load

    sweep = load(*args.sweep)
    with style.paper():
        result = _studied(sweep, study)
        style.finish(result.figure, args.title)
        path = figure_path(args, name, sweep)
        _write(result, path, args.csv or path.with_suffix(".csv"))
    _report(sweep, result, newest=not args.sweep)
    print(f"figure:  {path}\nnumbers: {args.csv or path.with_suffix('.csv')}")
    open_viewer(name, path.resolve().as_uri(), wanted=args.show)


def _studied(sweep: Sweep, study: Callable[[Sweep], Study]) -> Study:
    """The study; where there is none, the runs left out may be why."""
    from analysis.directories import BadInputError

    try:
        return study(sweep)
    except BadInputError as error:
        if not sweep.left_out:
            raise
        raise BadInputError(" ".join([f"{error}.", *account(sweep)])) from error


def open_viewer(name: str, address: str, *, wanted: bool) -> None:
    """Opens a file or page in the desktop's viewer when asked to."""
    if wanted and not webbrowser.open(address):
        print(f"{name}: --show: no viewer found for {address}", file=sys.stderr)


def figure_path(args: argparse.Namespace, name: str, sweep: Sweep) -> Path:
    """Where the figure goes: -o, or figures/NAME.png of the (first) sweep."""
    return args.output or sweep.paths[0] / "figures" / f"{name}.png"


def write_text(path: Path, text: str) -> None:
    """Writes a text file and the folders above it.

    Raises:
        BadInputError: the place cannot be written to.
    """
    from analysis.directories import BadInputError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError as error:
        raise BadInputError(_unwritable(error)) from error


def account(sweep: Sweep) -> list[str]:
    """How many runs were used and left out, and why, in sentences."""
    used, out = len(sweep.runs), len(sweep.left_out)
    text = [f"{used} of {used + out} runs used."]
    text += [f"Left out: {run.name}: {run.reason}." for run in sweep.left_out]
    return text + [f"{note}." for note in sweep.notes]


def without_lone_line(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Without `line` (or the given columns) where all rows say the same."""
    lone = [c for c in columns or ("line",) if table[c].nunique() == 1]
    return table.drop(columns=lone)


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table for people: intervals in brackets, four significant digits, empty for nothing.

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
    import pandas as pd

    return pd.DataFrame(shown)


def _report(sweep: Sweep, result: Study, *, newest: bool) -> None:
    where = " ".join(str(path) for path in sweep.paths)
    print(f"{where}{' (the newest sweep)' if newest else ''}\n")
    print(readable(result.table).to_string(index=False), end="\n\n")
    for sentence in [*result.sentences, *account(sweep)]:
        print(sentence)


def _write(result: Study, figure: Path, numbers: Path) -> None:
    from analysis import style
    from analysis.directories import BadInputError

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
