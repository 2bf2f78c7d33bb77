"""The launcher's settings: every key of `hydra.launcher`, and what its values may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional  # noqa: UP035  OmegaConf reads these spellings only

CHOICES = {"order": ("given", "interleaved", "shuffled"), "on_failure": ("continue", "stop")}


@dataclass
class WalleLauncherConf:
    """Every key of `hydra.launcher`, with its default."""

    _target_: str = "hydra_plugins.walle_launcher.launcher.WalleLauncher"
    # What the sweep may use; null: every core this process may run on.
    cores: Optional[List[int]] = None  # noqa: UP006, UP045
    # GPU slots, a number twice to share that GPU; null: CUDA_VISIBLE_DEVICES, or all there are.
    gpus: Optional[List[str]] = None  # noqa: UP006, UP045
    # One job at a time; null: yes when jobs differ in sampler.n, as their times are compared then.
    exclusive: Optional[bool] = None  # noqa: UP045
    # OMP_NUM_THREADS and its kin, the same in every job.
    threads: int = 1
    # given; interleaved: one seed after the other; shuffled: at random, the same way each time.
    order: str = "interleaved"
    # true: skip what is done in this directory; false: use a new directory, NAME-2 and so on;
    # null: true when the config has a `name`, else all jobs run again where they ran before.
    resume: Optional[bool] = None  # noqa: UP045
    # continue with the other jobs after a failure, or stop: start no further job.
    on_failure: str = "continue"
    # Start no further job after so many failures; null: no limit.
    max_failures: Optional[int] = None  # noqa: UP045
    # How many more times a failed job is tried.
    retries: int = 0
    # A job that runs longer is ended with all its processes, and has failed; null: no limit.
    timeout_s: Optional[float] = None  # noqa: UP045
    # From the request to stop (SIGTERM) to the end by force (SIGKILL) of a job out of time.
    grace_s: float = 10.0
    # Print the plan, its cores and directories, and run nothing.
    dry_run: bool = False
    # Modules that are imported once, before the first job, instead of in every job.
    preload: List[str] = field(default_factory=list)  # noqa: UP006
    # `module.function`, called with the config of every job before the first one starts; it
    # refuses a config by raising.
    validate: Optional[str] = None  # noqa: UP045
    # Keys that do not count when a job's config is compared with the one recorded.
    hash_ignore: List[str] = field(default_factory=list)  # noqa: UP006


def check_settings(settings: WalleLauncherConf) -> None:
    """Refuses what cannot be meant.

    Raises:
        ValueError: with the key, its value and what it may be.
    """
    for key, choices in CHOICES.items():
        if getattr(settings, key) not in choices:
            raise ValueError(
                f"hydra.launcher.{key}={getattr(settings, key)}: choose one of {', '.join(choices)}"
            )
    lowest = {"threads": 1, "retries": 0, "max_failures": 1, "grace_s": 0, "timeout_s": 0}
    for key, least in lowest.items():
        value = getattr(settings, key)
        if value is not None and (value < least or (key == "timeout_s" and value == 0)):
            above = "above 0" if key == "timeout_s" else f"at least {least}"
            raise ValueError(f"hydra.launcher.{key}={value}: it must be {above}")
    if settings.on_failure == "stop" and (settings.max_failures or 1) > 1:
        raise ValueError(
            f"hydra.launcher.on_failure=stop ends at the first failure, which contradicts "
            f"max_failures={settings.max_failures}: leave one of them out"
        )
