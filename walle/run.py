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

_STOPPED = "stopped before the run began"
# The flags of Hydra that the next word belongs to.
_WITH_VALUE = (
    *("--cfg", "-c", "--config-dir", "-cd", "--config-name", "-cn", "--config-path", "-cp"),
    *("--package", "-p", "--shell-completion", "-sc", "--experimental-rerun"),
)


def run(composed: DictConfig) -> float | None:
    """Trains one policy in Hydra's output directory; returns the value that `objective` names.

    The exit code is 2 if the configuration cannot work, 1 if a worker failed or died, and 128 + the
    signal's number if the run was interrupted.
    """
    from walle.errors import ConfigError, WalleError
    from walle.system.signals import standard_output, stopped_by

    try:
        with standard_output():  # before Hydra reports an error
            return _run(composed)
    except ConfigError as error:
        _remove_unused(composed)
        sys.exit(_report(error, 2))
    except WalleError as error:
        sys.exit(_report(error, 1))
    except KeyboardInterrupt as stop:
        code = 128 + stopped_by(stop)
        sys.exit(_report(_STOPPED, code) if _remove_unused(composed) else code)


def _imported_only_walle(launcher: DictConfig | None) -> bool:
    """Whether this process, a command or a job of `launcher`, has imported no user's module."""
    here = Path(__file__)
    commands = (here, here.with_name("__main__.py"), Path(sys.executable).with_name("walle"))
    main = getattr(sys.modules["__main__"], "__file__", None)
    preloaded = launcher is None or launcher.get("preload") == ["walle.training"]
    return preloaded and Path(main or "") in commands


def _remove_unused(composed: DictConfig) -> bool:
    """Removes the directory of a new run that has not begun; returns whether it is gone."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from walle.agent.run_directory import remove_refused

    hydra = HydraConfig.get()
    directory = Path(hydra.runtime.output_dir)
    if hydra.mode == RunMode.RUN and composed.get("resume") is None:
        remove_refused(directory)
    return not directory.exists()


def _run(composed: DictConfig) -> float | None:
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from walle.config.loading import resumed_config, stored_config, validate
    from walle.errors import DISK_FIXES, ConfigError, without_exit
    from walle.system.commands import command_of
    from walle.system.forkserver import (
        has_thread_limits,
        keep_processes,
        start_fork_server,
        without_collector,
    )
    from walle.system.identity import comparable_leaves, config_hash
    from walle.system.signals import SAVING, blocked_signals, output_failed

    keep_processes()
    for number in SAVING:
        signal(number, SIG_IGN)  # a scheduler's warning signal must not end the run before `train`
    # The import of torch can swallow a KeyboardInterrupt, so SIGINT is blocked during it.
    with blocked_signals(SIGINT), without_collector():
        hydra = HydraConfig.get()
        directory, launched = Path(hydra.runtime.output_dir), hydra.mode == RunMode.MULTIRUN
        # Unresolved, so that references such as ${oc.env:TOKEN} stay in what is stored.
        typed = list(cast(Any, OmegaConf.to_container(hydra.overrides.task, resolve=False)))
        clean = _imported_only_walle(hydra.launcher if launched else None) and has_thread_limits()
        if composed.get("resume") is None:
            # Not the working directory, which `hydra.job.chdir` changes.
            config = validate(composed, hydra.runtime.cwd)
        else:
            config = resumed_config(stored_config(directory), composed, typed)

        from walle.agent.checkpoint import disk_error, earlier_state
        from walle.system.run_files import has_checkpoint, read_status
        from walle.training import train

        # A class of the user's, whose module `validate` has imported.
        own = ":" in config.algo.name + config.net.name or bool(config.callbacks)
        workers = config.sampler.name == "process" or config.learners > 1
        # A process cannot use a GPU that its parent has begun to use.
        loaded = clean and not own and config.device == "cpu"
        start_fork_server(for_workers=workers, loaded=loaded)

    resumed = None
    if composed.resume is not None:
        resumed = earlier_state(
            directory, print, total_steps=config.total_steps, callbacks=config.callbacks
        )
    elif launched and read_status(directory).get("resume"):
        resumed = earlier_state(directory, print)
    identity = None
    if not (launched or resumed):  # the hash that a sweep would give to a job of these settings
        resolved, written = (
            cast(Any, OmegaConf.to_container(composed, resolve=resolve, enum_to_str=True))
            for resolve in (True, False)
        )
        ignore = hydra.launcher.get("hash_ignore") or ()
        identity = config_hash(comparable_leaves(resolved, written, ignore))
    shown = os.path.relpath(directory)
    how_to_resume = f"resume with: {command_of('run')} resume={shlex.quote(shown)}"
    try:
        with without_exit():
            result = train(config, directory, typed, resumed, launched=launched, identity=identity)
    except OSError as error:
        if error.errno not in DISK_FIXES or output_failed(error):
            raise
        raise disk_error(error, directory, shown) from error
    except Exception as error:
        if not (launched or isinstance(error, ConfigError)) and has_checkpoint(directory):
            error.add_note(how_to_resume)
        raise
    except KeyboardInterrupt:  # a second Ctrl-C
        if not launched and has_checkpoint(directory):
            print(how_to_resume)
        raise
    if config.logger.progress != "quiet":
        steps = f"{result.env_steps:,} steps in {result.wall_s:,.1f} s"
        print(f"{steps}, {result}; files in {shown}")
        if result.signal is not None and not launched:
            print(how_to_resume)
    if result.signal is not None:
        sys.exit(128 + result.signal)
    return result.objective(config.objective)


def main() -> None:
    """Runs Hydra; a user's mistake prints one line on stderr and ends with exit code 2."""
    try:
        from walle.system.signals import standard_output

        with standard_output():
            _main()
    except KeyboardInterrupt:  # before a run started
        sys.exit(_report(_STOPPED, 130))


def _main() -> None:
    try:
        import hydra
    except ModuleNotFoundError:
        fix = "activate walle's environment (. .venv/bin/activate), or install walle here"
        sys.exit(_report(f"{sys.executable} has no hydra-core: {fix}", 2))
    from hydra._internal.utils import get_args_parser

    from walle.system.machine import THREAD_VARIABLES

    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")  # before anything imports a threaded library
    from walle.config import config_directory
    from walle.config.callback import with_plus_signs
    from walle.config.did_you_mean import explain
    from walle.errors import DISK_FIXES, not_a_flag
    from walle.system.signals import output_failed

    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        from walle.config.files import help_text

        print(help_text(arguments))
        return
    if "--version" in arguments:
        from walle import __version__

        print(f"walle {__version__}")
        return
    # Hydra refuses overrides on both sides of a flag.
    flags, settings, before = list[str](), list[str](), ""
    for word in arguments:
        is_flag, may_have_value = word.startswith("-"), before in ("--info", "-i")
        is_value = before in _WITH_VALUE or (may_have_value and not is_flag and "=" not in word)
        (flags if is_value or is_flag else settings).append(word)
        before = "" if is_value else word
    sweeping = not {"-m", "--multirun"}.isdisjoint(flags)
    arguments = with_plus_signs([*settings, *flags])
    sys.argv = [sys.argv[0], *_into_its_directory(arguments)]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
    decorate = hydra.main(
        version_base="1.3", config_path=str(config_directory()), config_name="config"
    )
    try:
        if unknown := get_args_parser().parse_known_args(flags)[1]:
            sys.exit(_report(not_a_flag(unknown[0]), 2))
        decorate(run)()
    except Exception as error:
        if line := explain(error):
            sys.exit(_report(line, 2))
        if not isinstance(error, OSError) or output_failed(error):
            raise
        if error.errno == ENAMETOOLONG:
            fix = "shorten name, hydra.run.dir, hydra.sweep.dir or hydra.sweep.subdir"
            sys.exit(_report(f"{error.strerror}: {str(error.filename)[:80]}...; {fix}", 2))
        if error.errno not in DISK_FIXES:
            raise
        fix = DISK_FIXES[error.errno]
        if not any(word.lstrip("+").startswith("resume=") for word in arguments):
            key = "hydra.sweep.dir" if sweeping else "hydra.run.dir"
            fix += f", or choose another directory with {key}=..."
        sys.exit(_report(f"cannot write: {error}; {fix}", 1))


def _into_its_directory(arguments: list[str]) -> list[str]:
    """The command line with `resume=DIR` quoted for Hydra, and DIR as Hydra's output directory."""
    from walle.config.loading import stored_config
    from walle.errors import ConfigError

    given = [word for word in arguments if word.lstrip("+").startswith("resume=")]
    directory = given[0].partition("=")[2].strip("'\"") if given else "null"
    if len(given) > 1 or not directory:
        fault = "name one run only" if len(given) > 1 else "name a run's directory, or leave it out"
        sys.exit(_report(f"{' '.join(given)}: {fault}", 2))
    if directory == "null":
        return arguments
    if elsewhere := [w for w in arguments if w.lstrip("+").startswith("hydra.run.dir=")]:
        reason = "a run is resumed in its own directory; drop one of the two"
        sys.exit(_report(f"resume={directory} with {elsewhere[0]}: {reason}", 2))
    try:
        stored_config(Path(directory))
    except ConfigError as error:
        sys.exit(_report(error, 2))
    # Hydra takes a backslash literally unless a quote follows it.
    escaped = re.sub(r"(\\*)('|$)", lambda m: 2 * m[1] + ("\\'" if m[2] else ""), directory)
    index = arguments.index(given[0])
    words = [f"resume='{escaped}'", f"hydra.run.dir='{escaped}'", "hydra.output_subdir=null"]
    return [*arguments[:index], *words, *arguments[index + 1 :]]


def _report(error: object, code: int) -> int:
    notes = getattr(error, "__notes__", [])
    print(f"walle: {error}", *notes, sep="\n", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
