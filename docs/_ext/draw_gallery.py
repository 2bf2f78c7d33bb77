"""Runs a small sweep and draws every figure of the gallery into docs/_build/gallery."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from from_code import FIGURES, command_of, scripts, sweep_command

HERE = Path(__file__).resolve().parents[1] / FIGURES


def run(command: str) -> None:
    """Runs a command such as `walle speedup ...` in the gallery's directory."""
    arguments = [sys.executable, "-m", "walle", *shlex.split(command)[1:]]
    log = HERE / "output.log"
    with log.open("a") as output:
        ended = subprocess.run(arguments, cwd=HERE, stdout=output, stderr=output, check=False)
    if ended.returncode:
        sys.exit(f"{command}: exit code {ended.returncode}; {log} says why")


def main() -> None:
    """Draws the figures; a sweep that is complete is not run again."""
    HERE.mkdir(parents=True, exist_ok=True)
    run(sweep_command())
    for script in scripts():
        run(f"{command_of(script)} -o {script.stem}.png")
    (HERE / "ready").touch()


if __name__ == "__main__":
    main()
