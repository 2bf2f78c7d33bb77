"""The command `walle`: `walle NAME ...` runs a module of walle, walle.policy or walle.analysis."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from signal import SIGINT

ANALYSES = (
    *("across_tasks", "compare", "iteration_time", "lag", "plan", "published_returns"),
    *("report", "returns", "speedup", "time_percentage", "timeline", "wandb_report"),
)
MODULES = {
    **{name: f"walle.{name}" for name in ("eval", "run", "sweep")},
    "export": "walle.policy.export",
    **{name: f"walle.analysis.{name}" for name in ANALYSES},
}
OWN = {
    "recipes": "Lists the recipes: settings that were measured, for `+experiment=NAME`.",
    "sweeps": "Lists the sweep files, each with the question that it answers.",
    "completion bash": 'Prints the completion of these commands: eval "$(walle completion bash)".',
}
RUN_FLAGS = ("--cfg", "--config-name", "--help", "--multirun", "-cn", "-m")
BASH = r"""_walle() {
    local line=${COMP_LINE:0:$COMP_POINT} IFS=$'\n'
    COMPREPLY=($(COMP_LINE=$line "${COMP_WORDS[0]}" completion words 2>/dev/null))
    local word=${line##* }  # bash replaces only what follows the last = of a word
    if [[ $word == *=* && $COMP_WORDBREAKS == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
    fi
    if [[ ${#COMPREPLY[@]} == 0 ]]; then compopt +o nospace; fi  # then bash completes file names
}
complete -o nospace -o default -F _walle walle"""


def main() -> int | None:
    """Runs the command that sys.argv names; returns its exit code, 2 for an unknown command."""
    if sys.path[0] != os.getcwd() and "" not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does: modules beside the user are found
    try:
        from walle.system.signals import standard_output

        with standard_output():
            return _main()
    except KeyboardInterrupt:
        return 128 + SIGINT


def _main() -> int | None:
    name, arguments = _split(sys.argv[1:])
    if name in MODULES:
        return _call(name, arguments)
    if name == "--version":
        from walle import __version__

        print(f"walle {__version__}")
        return 0
    if name == "completion" and arguments in (["bash"], ["words"]):
        line = os.environ.get("COMP_LINE", "walle ")
        print(BASH if arguments == ["bash"] else "\n".join(_completions(line)))
        return 0
    from walle.system.format import table

    if name in ("", "-h", "--help", "help"):
        usage = "usage: walle COMMAND ...\n       walle --help | --version"
        print(usage, table(_lines()), sep="\n\n")
        return 0 if name else 2
    if name in ("sweeps", "recipes"):
        from walle.config.files import recipes, sweep_questions

        is_sweeps = name == "sweeps"
        start = "-cn NAME" if is_sweeps else "+experiment=NAME"
        lines = sweep_questions(arguments) if is_sweeps else recipes(arguments)
        print(table(lines), f"Start one with `walle run {start}`.", sep="\n\n")
        return 0
    from walle.errors import nearest

    settings = ("algo=", "env=", "env.id=", "+experiment=")
    trains = name in ("learn", "train") or any(word.startswith(settings) for word in arguments)
    near = "did you mean 'run'?" if trains else nearest(name, _lines())
    print(f"walle: there is no command {name!r}; {near}", file=sys.stderr)
    return 2


def _split(arguments: list[str]) -> tuple[str, list[str]]:
    """The command and its arguments; `env=hopper` and `-m` are arguments of `run`."""
    first, *rest = arguments or [""]
    if "=" in first or (first.startswith("-") and first not in ("-h", "--help", "--version")):
        return "run", arguments
    return first, rest


def _call(name: str, arguments: list[str]) -> int | None:
    sys.argv = [f"walle {name}", *arguments]
    code: int | None = import_module(MODULES[name]).main()
    return code


def _lines() -> dict[str, str]:
    """A line about each command: the first line of its module's docstring, without an import."""
    package = Path(__file__).parent.parent
    files = {name: package / f"{module.replace('.', '/')}.py" for name, module in MODULES.items()}
    lines = {
        name: file.read_text("utf-8").split('"""')[1].splitlines()[0]
        for name, file in files.items()
    }
    return lines | OWN


def _completions(line: str) -> list[str]:
    """The completions of the last word of a command line; a space follows the complete ones."""
    *before, word = line.split()[1:] + ([""] if line.endswith(" ") else [])
    name, arguments = _split([*before, word])
    candidates: Iterable[str] = ()
    if not before and "=" not in word:
        candidates = [*MODULES, *OWN, "--help", "--version"]
    elif name == "run":
        candidates = _completions_of_run(arguments)
    elif name in MODULES:
        candidates = (o for o in _options(name) if o.startswith("-") == word.startswith("-"))
    words = [candidate for candidate in candidates if candidate.startswith(word)]
    return [w if w.endswith(("=", ".", "/")) else f"{w} " for w in words if w]


def _completions_of_run(arguments: list[str]) -> Iterable[str]:
    """Flags, sweep files after -cn, and everything else as Hydra completes it."""
    *before, word = arguments
    named = [i for i, flag in enumerate(before) if flag in ("-cn", "--config-name")][-1:]
    if named == [len(before) - 1]:
        from walle.config.files import sweep_questions

        return sweep_questions(before)
    if word.startswith("-"):
        return RUN_FLAGS
    os.environ["COMP_LINE"] = " ".join(["walle", *arguments])  # Hydra reads the line from there
    config = [argument for i in named for argument in before[i : i + 2]]
    return _printed("run", [*config, "--shell-completion", "query=bash"]).split()


def _options(name: str) -> list[str]:
    """The flags that a script's help lists, and the words that it offers to choose from."""
    text = _printed(name, ["--help"])
    flags = re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
    choices = re.findall(r"^  \{(.*)\}", text, re.MULTILINE)
    return re.findall(r"(?<!\w)--?[a-z][\w-]*", " ".join(flags)) + ",".join(choices).split(",")


def _printed(name: str, arguments: list[str]) -> str:
    output = io.StringIO()
    with redirect_stdout(output), suppress(SystemExit):
        _call(name, arguments)
    return output.getvalue()


if __name__ == "__main__":
    sys.exit(main())
