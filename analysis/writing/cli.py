"""Gives every script its flags; loads the runs, writes figure and numbers, prints sentences."""

from __future__ import annotations

import argparse
import inspect
import sys
import webbrowser
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT
from typing import Any, NamedTuple

import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.runs import BadInputError, Sweep, fingerprint, is_run, load
from walle.analysis.writing import sentences
from walle.analysis.writing.format import counted, listed
from walle.system.files import write_atomically
from walle.system.signals import standard_output

FORMATS = (".png", ".svg", ".pdf")
# Figures of the same data are the same bytes.
UNDATED: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
TABLES = ("iterations", "episodes", "timing", "eval", "trace")
OF_RUNS = (*(f"{name}.csv" for name in TABLES), "run.json", "status.json")
OF_SWEEPS = ("index.csv", "manifest.json")
PAPER = "draw the papers' own points too"
LOG = "use logarithmic axes"
COMPILING = "count the compiler's time on the wall clock too"
BASELINE = {"type": Path, "metavar": "DIR", "help": "draw these runs in grey too"}


FIGURE: Mapping[str, Any] = {
    "--xlabel TEXT": {"help": "the label of the x axes"},
    "--labels OLD=NEW": {"nargs": "+", "default": [], "help": "other words for lines and titles"},
    "--width MM": {
        "type": lambda text: whole_number(text.removesuffix("mm"), 30) / 25.4,
        "help": "the figure's width, such as 85mm",
    },
}


class Study(NamedTuple):
    """The result of a script."""

    figure: style.Figure  # drawn but not written
    table: pd.DataFrame  # the numbers; a column `x` may have `x_low` and `x_high` beside it
    sentences: list[str]  # the findings, the answer first
    points: pd.DataFrame | None = None  # of the figure, if the table is only a summary
    perfetto: Callable[[], str] | None = None  # the JSON of a trace, for one more file
    notes: Sequence[str] = ()  # on the method


def parser(
    description: str | None,
    flags: Mapping[str, Any] | None = None,
    *,
    formats: tuple[str, ...] = FORMATS,
    options: Collection[str] = ("by", "warmup"),
) -> argparse.ArgumentParser:
    """A parser with the flags that all scripts share, and with a script's own `flags`.

    `options` may lack --by or --warmup, which the script then does not have. `flags` holds the
    arguments of `add_argument`, or only the help, by flag and metavar.
    """
    raw = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(
        description=description, formatter_class=raw, conflict_handler="resolve"
    )
    about = "sweeps or single runs (default: the newest sweep under ./multirun)"
    p.add_argument("sweep", nargs="*", type=Path, metavar="SWEEP_DIR", help=about)
    about = f"the file to write: {', '.join(formats)} (default: in the sweep's directory)"
    p.add_argument(
        "-o", "--output", type=lambda text: _path_ending(text, formats), metavar="FILE", help=about
    )
    about = "the file for the numbers behind the figure (default: beside the figure)"
    p.add_argument("--csv", type=Path, metavar="FILE", help=about)
    if "by" in options:
        about = "the configuration key to compare by (default: sampler.n, or what varies)"
        p.add_argument("--by", metavar="KEY", help=about)
    if "warmup" in options:
        about = "leave the first K iterations of each run out of mean times (default: 1)"
        p.add_argument("--warmup", type=whole_number, default=1, metavar="K", help=about)
    p.add_argument("--title", help="write a title above the figure")
    p.add_argument("--notes", action="store_true", help="print all notes on machine and method")
    p.add_argument("--show", action="store_true", help="open the figure in a viewer")
    for flag, settings in (flags or {}).items():
        name, _, metavar = flag.partition(" ")
        more = {"help": settings} if isinstance(settings, str) else settings
        switch: dict[str, Any] = {"action": "store_true"} if more is not settings else {}
        p.add_argument(name, **({"metavar": metavar} if metavar else switch), **more)
    return p


def guard(name: str, action: Callable[[], None]) -> int:
    """Runs `action`; bad input becomes one line on stderr, after `name`, and exit code 2.

    A SIGINT ends the process without a word, with exit code 130.
    """
    try:
        with standard_output():
            action()
    except BadInputError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        sys.exit(128 + SIGINT)
    return 0


def command(
    name: str,
    study: Callable[..., Study],
    doc: str | None,
    flags: Mapping[str, Any] | None = None,
    figure: Callable[[argparse.Namespace], str] | None = None,
) -> Callable[..., int]:
    """The `main` of a script that draws a figure: a function of the arguments, or of sys.argv.

    The keywords of `study` are flags, and the runs that `baseline` names are loaded. `name` is
    the prefix of errors, and names the figure's file unless `figure` returns another name. The
    error of a failed study also names the runs that were left out.
    """
    options = [key for key in inspect.signature(study).parameters if key != "sweep"]

    def draw(args: argparse.Namespace, file: str) -> None:
        sweep, chosen = load(*args.sweep), given(args, *options)
        loaded = {"": sweep}
        if chosen.get("baseline"):
            chosen["baseline"] = loaded["Baseline: "] = load(args.baseline)

        def account(runs: Collection[str]) -> list[str]:
            return [f"{of}{text}" for of in runs for text in sentences.account(loaded[of])]

        with style.paper():
            try:
                result = study(sweep, **chosen)
            except BadInputError as error:
                left_out = account([of for of, runs in loaded.items() if runs.left_out])
                text = sentences.ended(error) if left_out else str(error)
                raise BadInputError(" ".join([text, *left_out])) from error
            if args.width:
                style.resize(result.figure, args.width)
            words = dict(text.rpartition("=")[::2] for text in args.labels)
            if missing := style.rename(result.figure, words, args.xlabel):
                text = f"not in the figure: {listed(sorted(map(repr, missing)))}; write OLD=NEW"
                raise BadInputError(f"--labels {' '.join(args.labels)}: {text}")
            style.finish(result.figure, args.title)
            path = args.output or sweep.paths[0] / f"figures/{file}.png"
            numbers = args.csv or path.with_suffix(".csv")
            points = result.table if result.points is None else result.points
            write_text(numbers, points.to_csv(index=False))
            more = []
            if result.perfetto:
                beside = args.json or path.with_suffix(".json")
                write_text(beside, result.perfetto())
                more = [f"Perfetto trace: {beside}"]
            with _written(path):
                result.figure.savefig(path, metadata=UNDATED.get(path.suffix))
        newest = "" if args.sweep else " (the newest sweep)"
        print(f"{' '.join(map(str, sweep.paths))}{newest}\n")
        print(*result.sentences, sep="\n", end="\n\n" if result.sentences else "")
        print(sentences.readable(result.table).to_string(index=False), end="\n\n")
        notes = [*sentences.machine(sweep), *result.notes]
        notes.append(f"SHA-256 of all run.json: {fingerprint(sweep.runs)}.")
        if not args.notes:
            rest = f"{counted(len(notes) - 1, 'more note')}: --notes"
            notes = [f"{notes[0]} ({rest})"] if len(notes) > 1 else notes
        print(*more, *account(loaded), *notes, sep="\n")
        print(f"figure:  {path}\nnumbers: {numbers}")
        open_viewer(args, file, path.resolve().as_uri())

    def main(argv: list[str] | None = None) -> int:
        args = parser(doc, {**FIGURE, **(flags or {})}, options=options).parse_intermixed_args(argv)
        return guard(name, lambda: draw(args, figure(args) if figure else name))

    return main


def given(args: argparse.Namespace, *options: str) -> dict[str, Any]:
    """The values of some flags, as the keywords of a function."""
    return {option: getattr(args, option) for option in options}


def open_viewer(args: argparse.Namespace, name: str, address: str) -> None:
    """Opens a file or page in the desktop's viewer, if --show asks for it."""
    if args.show and not webbrowser.open(address):
        print(f"{name}: --show: no viewer found for {address}", file=sys.stderr)


def write_page(args: argparse.Namespace, sweep: Sweep, path: Path, text: str, *, name: str) -> None:
    """Writes a page called `name`, and beside it a table with a row per run; prints their paths."""
    runs = args.csv or path.with_suffix(".csv")
    write_text(runs, sweep.summary().to_csv(index=False))
    write_text(path, text)
    print(f"{name}: {path}\n{'runs:':{len(name) + 1}} {runs}")


def write_text(path: Path, text: str) -> None:
    """Writes a text file, and makes the folders above it; BadInputError if it cannot."""
    with _written(path):
        if path.suffix == ".html":  # a browser may load a page again at any moment
            write_atomically(path.resolve(), text.encode(errors="backslashreplace"))
        else:
            path.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def _written(path: Path) -> Iterator[None]:
    """Makes the folders above a file; an error of writing it, or a run's own file, is bad input."""
    names = OF_RUNS if is_run(path.parent) else OF_SWEEPS
    if path.name in names and path.exists():
        raise BadInputError(
            f"{path} is a file of a run or a sweep, and would be replaced: give another name with "
            "-o or --csv"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        text = f"cannot write {error.filename}: {error.strerror}; choose another path with -o"
        raise BadInputError(text) from error


def _path_ending(text: str, endings: tuple[str, ...]) -> Path:
    path = Path(text)
    if path.suffix not in endings:
        raise argparse.ArgumentTypeError(f"{text!r} has to end in {' or '.join(endings)}")
    return path


def whole_number(text: str, least: int = 0) -> int:
    """The whole number of a flag; refuses any other text, or less than `least`."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)
