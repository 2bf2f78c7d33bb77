"""The launcher's settings: every key of `hydra.launcher` and its allowed values."""

# ruff: noqa: UP006, UP035, UP045  OmegaConf reads these spellings of types only

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional

from walle.errors import ConfigError, check_bounds, not_negative, one_of, positive, within

DEFAULT_REPEAT = "seed"
STALE_BEATS = 9  # a worker has vanished when it has missed this many heartbeats


@dataclass
class SlurmConf:
    """Every key of `hydra.launcher.slurm`, with its default: the request to Slurm."""

    # Partition, as sbatch takes it; null: the cluster's default. `sinfo` lists them.
    partition: Optional[str] = None
    # Account to charge; null: your default.
    account: Optional[str] = None
    # Quality of service; null: your default.
    qos: Optional[str] = None
    # Features that the nodes must have, such as "amd&fast"; null: any node.
    constraint: Optional[str] = None
    # Time limit of a worker, as sbatch takes it: minutes, or 2:00:00 (quoted in a file).
    # A worker that reaches it is started again, and its jobs resume from their checkpoints. null:
    # the limit of the partition.
    time: Optional[str] = None
    # Seconds before the time limit at which the jobs are asked to write their checkpoints and end.
    save_s: int = not_negative(120)
    # Workers to submit; null: enough for the cores of all jobs, but 16 at most; one in a sweep that
    # measures time, because compared times must come from one node.
    workers: Optional[int] = positive(None)
    # Cores of a worker, which runs as many jobs side by side as fit; null: what the largest job
    # needs. Sweeps that measure time, and jobs that take all cores, get whole nodes instead.
    cores: Optional[int] = positive(None)
    # GPUs of a worker.
    gpus: int = not_negative(0)
    # Memory of a worker, such as 8G; null: Slurm's own choice.
    memory: Optional[str] = None
    # Further options of sbatch, such as --nice=100.
    options: List[str] = field(default_factory=list)
    # Lines of shell to run in a worker before walle, such as `module load python`.
    setup: List[str] = field(default_factory=list)
    # A batch script of your own, with the words @OPTIONS@ (the lines of #SBATCH), @SETUP@ and
    # @COMMAND@; null: the launcher's.
    template: Optional[str] = None
    # Seconds between two heartbeats of a worker. Others claim its jobs after it misses nine.
    heartbeat_s: float = within("(0, 1e6]", example=10, default=10.0)


@dataclass
class RayConf:
    """Every key of `hydra.launcher.ray`, with its default: the request to a Ray cluster."""

    # The cluster. auto: the one that this machine has joined; host:port: the one at that address;
    # null: a Ray of the command's own on this machine, which ends with the command.
    address: Optional[str] = "auto"
    # Workers to start; null: one on every node with enough free cores for any job, until all jobs
    # can run at once; one in a sweep that measures time. Further workers wait until cores are free
    # or nodes join.
    workers: Optional[int] = positive(None)
    # Cores of a worker, which runs as many jobs side by side as fit; null: all free cores of its
    # node, as far as the jobs need them. Sweeps that measure time, and jobs that take all cores,
    # get whole nodes instead.
    cores: Optional[int] = positive(None)
    # GPUs of a worker.
    gpus: int = not_negative(0)
    # Seconds that jobs have to write their checkpoints when Ctrl-C ends the workers.
    save_s: int = not_negative(120)
    # Seconds between two heartbeats of a worker. Others claim its jobs after it misses nine.
    heartbeat_s: float = within("(0, 1e6]", example=10, default=10.0)


@dataclass
class WalleLauncherConf:
    """Every key of `hydra.launcher`, with its default."""

    _target_: str = "hydra_plugins.walle_launcher.launcher.WalleLauncher"
    # Where the jobs run. local: on this machine; slurm: in workers that Slurm starts on its nodes;
    # ray: in workers on the nodes of a Ray cluster. Nodes share the sweep's directory with this
    # machine.
    backend: str = one_of("local", "slurm", "ray", default="local")
    # false: with backend=slurm or ray, submit the workers and return; `walle sweep status` shows
    # their progress.
    wait: bool = True
    # What to ask Slurm for.
    slurm: SlurmConf = field(default_factory=SlurmConf)
    # What to ask a Ray cluster for.
    ray: RayConf = field(default_factory=RayConf)
    # Cores that the sweep may use; null: every core this process may run on.
    cores: Optional[List[int]] = None
    # GPUs that the sweep may use; two jobs share a GPU that is named twice. null: the GPUs in
    # CUDA_VISIBLE_DEVICES, or all GPUs of the machine.
    gpus: Optional[List[str]] = None
    # Run one job at a time; null: only when jobs differ in a key that affects speed (sampler.n,
    # sampler.max_lag, learner.n, learner.threads), because their times are compared, or when each
    # of several jobs takes all cores. This also applies if a sweep file varies such a key but the
    # command line fixes the key. false: run the jobs in parallel (timings are then not comparable).
    exclusive: Optional[bool] = None
    # Before the first and after the last job, time about a second of fixed work on every core, and
    # warn when cores are unequal or busy; null: when jobs run one at a time.
    check_cores: Optional[bool] = None
    # Value of OMP_NUM_THREADS and of the other libraries' variables, the same in every job.
    threads: int = positive(1)
    # Order of the jobs. given: the sweeper's; interleaved: all jobs of one repeat, then all of the
    # next; blocks: the same, and every repeat has its jobs in a random order of its own, so that
    # values can be compared within a repeat on a machine that drifts; shuffled: a random order.
    # Random orders are the same in every launch. null: blocks when jobs run one at a time, else
    # interleaved.
    order: Optional[str] = one_of("given", "interleaved", "blocks", "shuffled", default=None)
    # The key in which the repeats of a setting differ.
    repeat: str = DEFAULT_REPEAT
    # true: skip the jobs that are complete in this directory, and resume all others from their
    # checkpoints; false: use a new directory, NAME-2 and so on; null: true when the config has a
    # `name`, else run all jobs from the beginning, in the same directories.
    resume: Optional[bool] = None
    # Start no further job once this many have failed, each after all its retries; null: three, if
    # they failed alike and no other job has ended, else no limit.
    max_failures: Optional[int] = positive(None)
    # How many more times to try a job that failed, before the next job starts; it resumes from its
    # checkpoint if it has one.
    retries: int = not_negative(0)
    # Seconds after which an attempt at a job is ended with all its processes, and counts as failed;
    # null: no limit.
    timeout_s: Optional[float] = positive(None)
    # Seconds from the request to stop (SIGTERM) to SIGKILL, for a job that ran past timeout_s.
    grace_s: float = not_negative(10.0)
    # Print the plan with its cores and directories, and run nothing.
    dry_run: bool = False
    # Modules to import once, before the first job, instead of in every job.
    preload: List[str] = field(default_factory=list)
    # `module.function`, called with the config of every job before the first job starts; it
    # refuses a config by raising a ValueError or TypeError.
    validate: Optional[str] = None
    # A group whose choices may have settings of their own in a sweep: with `algo`, `ppo.clip=0.1`
    # sets `algo.clip` in the jobs with algo=ppo only; null: none.
    own_settings: Optional[str] = None
    # Keys to leave out when a job's config is compared with the recorded one.
    hash_ignore: List[str] = field(default_factory=list)


def check_settings(settings: WalleLauncherConf) -> None:
    """Raises `ConfigError` for impossible and contradictory values."""
    name = settings.backend
    check_bounds(settings, "hydra.launcher")
    if name == "local" and not settings.wait:
        raise ConfigError(
            "hydra.launcher.wait=false needs workers that continue without this process: add "
            "hydra.launcher.backend=slurm or ray"
        )
    for group, defaults in {"slurm": SlurmConf(), "ray": RayConf()}.items():
        for key, default in vars(defaults).items():
            value = getattr(getattr(settings, group), key)
            if group != name and value != default:
                raise ConfigError(
                    f"hydra.launcher.{group}.{key}={value} has no effect with backend="
                    f"{name}: leave it out, or use hydra.launcher.backend={group}"
                )
    if name == "local":
        return
    for key in ("cores", "gpus"):
        if getattr(settings, key) is not None:
            raise ConfigError(
                f"hydra.launcher.{key} names those of this machine, and backend={name} runs jobs "
                f"elsewhere: use hydra.launcher.{name}.{key}"
            )
    if settings.check_cores:
        raise ConfigError(
            f"hydra.launcher.check_cores times the cores of this machine, and backend={name} runs "
            "jobs elsewhere: leave it out"
        )
    check_bounds(getattr(settings, name), f"hydra.launcher.{name}")
