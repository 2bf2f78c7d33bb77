"""The batch script of workers: the launcher's own, or a template of the user's."""

from __future__ import annotations

import shlex
from pathlib import Path

from walle.launcher.settings import SlurmConf
from walle.launcher.workers.slurm import SlurmError

OPTIONS, SETUP, COMMAND = "@OPTIONS@", "@SETUP@", "@COMMAND@"
TEMPLATE = f"""#!/bin/bash
{OPTIONS}
{SETUP}
exec {COMMAND}
"""


def batch_script(
    settings: SlurmConf, command: str, *, name: str, log: str, cores: int | None
) -> str:
    """The text for sbatch.

    Args:
        settings: of Slurm.
        command: starts a worker; the shell must replace itself by it, so that the worker gets
            Slurm's signals.
        name: of the jobs.
        log: pattern of the file that gets a worker's output.
        cores: of a worker; None for a whole node.

    Raises:
        SlurmError: the template cannot be read, or does not start the worker.
    """
    text = TEMPLATE if settings.template is None else _read(Path(settings.template))
    lines = [f"#SBATCH {option}" for option in options(settings, name=name, log=log, cores=cores)]
    parts = {OPTIONS: "\n".join(lines), SETUP: "\n".join(settings.setup), COMMAND: command}
    for word, part in parts.items():
        text = text.replace(word, part)
    return text


def options(settings: SlurmConf, *, name: str, log: str, cores: int | None) -> list[str]:
    """The options of sbatch; see `batch_script`."""
    named = {
        "job-name": name,
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "constraint": settings.constraint,
        "time": settings.time,
        "mem": settings.memory,
        "gres": f"gpu:{settings.gpus}" if settings.gpus else None,
        "cpus-per-task": cores,
        "output": log,
        "open-mode": "append",  # a worker that is started again goes on with its log
        "nodes": 1,
        "ntasks": 1,
        "signal": f"B:USR1@{settings.save_s}",
    }
    given = [_quoted(f"--{key}={value}") for key, value in named.items() if value is not None]
    return [*given, "--requeue", *(["--exclusive"] if cores is None else []), *settings.options]


def _quoted(option: str) -> str:
    """The option as sbatch reads it in a script: a directory's name may hold spaces."""
    return shlex.quote(option) if any(map(str.isspace, option)) else option


def _read(template: Path) -> str:
    try:
        text = template.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SlurmError(
            f"hydra.launcher.slurm.template={template} cannot be read ({error}): name a batch "
            "script"
        ) from None
    if COMMAND not in text:
        raise SlurmError(
            f"hydra.launcher.slurm.template={template} does not contain {COMMAND}: put it where "
            f"the worker is to be started, as in `exec {COMMAND}`"
        )
    return text
