"""Trains a policy; with -m or a sweep file, starts a sweep of runs."""

from __future__ import annotations

import os
import sys
from errno import EACCES, EDQUOT, ENOSPC, ENOTDIR, EROFS
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(composed: DictConfig) -> float | None:
    """Hydra's task: one run in Hydra's output directory; returns the final return_mean.

    Exits with 2 when the configuration cannot work, 1 when a worker failed or died, 128 + the
    signal's number when interrupted.
    """
    from walle.errors import ConfigError, WalleError

    try:
        return _run(composed)
    except ConfigError as error:
        sys.exit(_told(error, 2))
    except WalleError as error:
        sys.exit(_told(error, 1))
    except KeyboardInterrupt as stop:
        from walle.processes.signals import stopped_by

        sys.exit(128 + stopped_by(stop))


def _run(composed: DictConfig) -> float | None:
    from pathlib import Path

    from hydra.core.hydra_config import HydraConfig

    from walle.config import validate
    from walle.processes.forkserver import start_fork_server

    config = validate(composed)
    if config.sampler.name == "process":
        start_fork_server()  # it imports torch and MuJoCo while this process builds its part

    from walle.train import train

    hydra = HydraConfig.get()
    directory = Path(hydra.runtime.output_dir)
    outcome = train(config, directory, list(hydra.overrides.task))
    if config.logger.progress != "quiet":
        told = "-" if outcome.return_mean is None else f"{outcome.return_mean:,.1f}"
        print(
            f"{outcome.env_steps:,} steps in {outcome.wall_s:,.1f} s, return {told}; "
            f"files in {os.path.relpath(directory)}"
        )
    if outcome.signal is not None:
        sys.exit(128 + outcome.signal)
    return outcome.return_mean


def main() -> None:
    """Runs Hydra; what a user got wrong is one line on stderr and exit code 2."""
    try:
        _main()
    except KeyboardInterrupt:  # before there was a run
        sys.exit(130)


def _main() -> None:
    from walle.machine import THREAD_VARIABLES

    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")  # before anything imports a threaded library

    import hydra
    from hydra.errors import HydraException

    from walle.config import config_directory, explain, sweeps_directory

    os.environ["HYDRA_FULL_ERROR"] = "1"  # let exceptions through; they are told below
    named, placed = (
        _flag(sys.argv, *f) for f in (("-cn", "--config-name"), ("-cd", "--config-dir"))
    )
    if named and not placed:  # then it may lie in sweeps/
        sys.argv += ["--config-dir", str(sweeps_directory())]
    app = hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="config")(
        run
    )
    try:
        app()
    except HydraException as error:
        sys.exit(_told(explain(error), 2))
    except ValueError as error:
        if not str(error).startswith("Config group override"):  # Hydra's, of `GROUP=null`
            raise
        sys.exit(_told(f"{error}: give a group one of its options, as in logger=files", 2))
    except OSError as error:
        if error.errno not in (EACCES, EDQUOT, ENOSPC, ENOTDIR, EROFS):
            raise
        sys.exit(_told(f"cannot write: {error}; give another place with hydra.run.dir=...", 1))


def _flag(arguments: list[str], *names: str) -> bool:
    return any(a in names or a.startswith(tuple(f"{n}=" for n in names)) for a in arguments)


def _told(error: object, code: int) -> int:
    notes = getattr(error, "__notes__", [])
    print(f"walle: {error}", *notes, sep="\n", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
