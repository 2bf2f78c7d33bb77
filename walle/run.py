"""Trains a policy; with -m or a sweep file, starts a sweep of runs."""

from __future__ import annotations

import os
import re
import shlex
import sys
from errno import ENAMETOOLONG
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(composed: DictConfig) -> float | None:
    """Trains one policy in Hydra's output directory; returns what `objective` names.

    The exit code is 2 if the configuration cannot work, 1 if a worker failed or died, and 128 + the
    signal's number if the run was interrupted.
    """
    from walle.errors import ConfigError, WalleError
    from walle.system.signals import reader_may_leave

    try:
        with reader_may_leave():  # before Hydra reports an error
            return _run(composed)
    except ConfigError as error:
        _leave_no_directory(composed)
        sys.exit(_report(error, 2))
    except WalleError as error:
        sys.exit(_report(error, 1))
    except KeyboardInterrupt as stop:
        from walle.system.signals import stopped_by

        sys.exit(128 + stopped_by(stop))


def _run(composed: DictConfig) -> float | None:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from walle.config import as_typed, resumed_config, stored_config, validate
    from walle.errors import DISK_CURES
    from walle.system.forkserver import keep_processes, start_fork_server, without_collector
    from walle.system.signals import SAVING, blocked_signals

    keep_processes()
    for number in SAVING:
        signal(number, SIG_IGN)  # until `train` handles them: a scheduler's warning ends no run
    # SIGINT waits while torch is imported, which can swallow a KeyboardInterrupt.
    with blocked_signals(SIGINT), without_collector():
        hydra = HydraConfig.get()
        directory, typed = Path(hydra.runtime.output_dir), as_typed(hydra.overrides.task)
        if composed.resume is None:
            config = validate(composed)
        else:
            config = resumed_config(stored_config(directory), composed, typed)
        workers = config.sampler.name == "process" or config.learners > 1
        start_fork_server(for_workers=workers)  # it imports torch in parallel to this process

        from walle.agent.checkpoint import disk_error, earlier_state
        from walle.system.run_files import has_checkpoint, read_status
        from walle.training import train

    launched = hydra.mode == RunMode.MULTIRUN
    resumed = None
    if composed.resume is not None:
        resumed = earlier_state(
            directory, print, total_steps=config.total_steps, callbacks=config.callbacks
        )
    elif launched and read_status(directory).get("resume"):
        resumed = earlier_state(directory, print)
    identity = None if launched or resumed else _identity(composed)
    try:
        result = train(config, directory, typed, resumed, launched=launched, identity=identity)
    except OSError as error:
        if error.errno not in DISK_CURES:
            raise
        raise disk_error(error, directory, os.path.relpath(directory)) from error
    except KeyboardInterrupt:  # a second Ctrl-C
        if not launched and has_checkpoint(directory):
            print(_how_to_go_on(directory))
        raise
    if config.logger.progress != "quiet":
        steps = f"{result.env_steps:,} steps in {result.wall_s:,.1f} s"
        print(f"{steps}, {result}; files in {os.path.relpath(directory)}")
        if result.signal is not None and not launched:
            print(_how_to_go_on(directory))
    if result.signal is not None:
        sys.exit(128 + result.signal)
    return result.objective(config.objective)


def _leave_no_directory(composed: DictConfig) -> None:
    """Removes the directory that Hydra made for a run that was refused."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from walle.agent.run_directory import remove_refused

    hydra = HydraConfig.get()
    if hydra.mode == RunMode.RUN and composed.resume is None:
        remove_refused(Path(hydra.runtime.output_dir))


def _how_to_go_on(directory: Path) -> str:
    from walle.system.commands import command_of

    return f"go on with: {command_of('run')} resume={shlex.quote(os.path.relpath(directory))}"


def _identity(composed: DictConfig) -> str:
    """The hash that a sweep would give to a job with this configuration."""
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import OmegaConf

    from walle.launcher.identity import comparable_leaves, config_hash

    resolved, written = (
        cast(Any, OmegaConf.to_container(composed, resolve=resolve, enum_to_str=True))
        for resolve in (True, False)
    )
    ignore = HydraConfig.get().launcher.get("hash_ignore") or ()
    return config_hash(comparable_leaves(resolved, written, ignore))


def main() -> None:
    """Runs Hydra; a user's mistake gives one line on stderr and exit code 2."""
    try:
        from walle.system.signals import reader_may_leave

        with reader_may_leave():
            _main()
    except KeyboardInterrupt:  # before a run began
        sys.exit(130)


def _main() -> None:
    from walle.system.machine import THREAD_VARIABLES

    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")  # before anything imports a threaded library

    if {"-h", "--help"} & set(sys.argv):
        from walle.config.help import help_text

        print(help_text(sys.argv[1:]))
        return
    if "--version" in sys.argv:
        from walle import __version__

        print(f"walle {__version__}")
        return
    sweeping = [each for each in sys.argv[1:] if each in ("-m", "--multirun")]
    # Hydra refuses overrides on both sides of a flag
    sys.argv = [sys.argv[0], *sweeping, *(a for a in sys.argv[1:] if a not in sweeping)]

    try:
        import hydra
    except ModuleNotFoundError:
        cure = "activate walle's environment (. .venv/bin/activate), or install walle here"
        sys.exit(_report(f"{sys.executable} has no hydra-core: {cure}", 2))
    from hydra.errors import HydraException
    from yaml import YAMLError

    from walle.config import config_directory, explain, explain_damage
    from walle.config.choices import with_plus_signs
    from walle.errors import DISK_CURES

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
    sys.argv = with_plus_signs(sys.argv)
    if any(argument.startswith("resume=") for argument in sys.argv):
        sys.argv = _into_its_directory(sys.argv)
    app = hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="config")(
        run
    )
    try:
        app()
    except HydraException as error:
        sys.exit(_report(explain(error), 2))
    except (UnicodeDecodeError, YAMLError) as error:
        if not (line := explain_damage(error)):
            raise
        sys.exit(_report(line, 2))
    except ValueError as error:
        if not str(error).startswith("Config group override"):  # Hydra raises that for `GROUP=null`
            raise
        sys.exit(_report(f"{error}: give a group one of its options, as in logger=files", 2))
    except OSError as error:
        if error.errno == ENAMETOOLONG:
            cure = "shorten name, hydra.run.dir, hydra.sweep.dir or hydra.sweep.subdir"
            sys.exit(_report(f"{error.strerror}: {str(error.filename)[:80]}...; {cure}", 2))
        if error.errno not in DISK_CURES:
            raise
        cure = DISK_CURES[error.errno]
        if not any(argument.startswith("resume=") for argument in sys.argv):
            place = "hydra.sweep.dir" if sweeping else "hydra.run.dir"
            cure += f", or give another place with {place}=..."
        sys.exit(_report(f"cannot write: {error}; {cure}", 1))


def _into_its_directory(arguments: list[str]) -> list[str]:
    """The command line with `resume=DIR` quoted for Hydra, whose output goes to DIR."""
    from walle.config import stored_config
    from walle.errors import ConfigError

    place = next(i for i, argument in enumerate(arguments) if argument.startswith("resume="))
    directory = arguments[place].partition("=")[2].strip("'\"")
    if directory in ("", "null"):
        return arguments
    if elsewhere := [each for each in arguments if each.startswith("hydra.run.dir=")]:
        reason = "a run goes on in its own directory; drop one of the two"
        sys.exit(_report(f"resume={directory} with {elsewhere[0]}: {reason}", 2))
    try:
        stored = stored_config(Path(directory))
    except ConfigError as error:
        sys.exit(_report(error, 2))
    if _needs_workers(stored, arguments[1:]):
        from walle.system.forkserver import keep_processes, start_fork_server

        keep_processes()
        start_fork_server()  # it imports torch while Hydra composes the settings here
    # Hydra reads a backslash as itself unless a quote follows it.
    quoted = "'{}'".format(re.sub(r"(\\*)('|$)", _escaped, directory))
    own = [f"resume={quoted}", f"hydra.run.dir={quoted}", "hydra.output_subdir=null"]
    return [*arguments[:place], *own, *arguments[place + 1 :]]


def _needs_workers(stored: dict[str, Any], arguments: list[str]) -> bool:
    """Whether a resumed run surely starts workers, and Hydra leaves their environment alone."""
    special = [a for a in arguments if a.startswith("-") or "hydra." in a or a == "sampler=serial"]
    try:
        asked = stored["sampler"]["name"] == "process" or stored["learner"]["n"] > 1
    except (KeyError, TypeError):  # a damaged run.json is refused later
        return False
    return asked and not special


def _escaped(found: re.Match[str]) -> str:
    """The backslashes before a quote or before the end of a text, and the quote."""
    return 2 * found[1] + ("\\'" if found[2] else "")


def _report(error: object, code: int) -> int:
    notes = getattr(error, "__notes__", [])
    print(f"walle: {error}", *notes, sep="\n", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
