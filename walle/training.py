"""Starts the parts of a run, runs the agent, and stops all parts in every case."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from multiprocessing import spawn
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from walle.agent import checkpoint
from walle.agent.cadence import Every
from walle.agent.callbacks.base import Callback
from walle.agent.callbacks.calling import make_callbacks, stop_reason
from walle.agent.provenance import write_provenance
from walle.agent.recorder import Filming
from walle.agent.run_directory import Status, set_aside_previous
from walle.config import config_hash, to_dict, validate
from walle.config.remarks import crowded, late_episodes
from walle.config.schemas import Config
from walle.errors import ConfigError, Interrupted, WorkerDeathError, WorkerError
from walle.learning.cached_files import built
from walle.parts import (
    Run,
    make_agent,
    make_algorithm,
    make_outputs,
    make_problem,
    make_sampling,
    make_tasks,
    start_learners,
)
from walle.sampling.sampling import EventLog
from walle.system.forkserver import end_orphans
from walle.system.format import return_text
from walle.system.locks import run_directory
from walle.system.signals import Signals
from walle.system.supervision import Restarts
from walle.timing import AGENT_SECTIONS, Timer, TraceFile

if TYPE_CHECKING:
    from omegaconf import DictConfig


class RunResult(NamedTuple):
    """The result of a run.

    Attributes:
        eval_mean: mean return of the last evaluation; None without evaluations.
        best: the highest mean return of an evaluation; None without evaluations.
        return_mean: mean return of the last episodes; None if no episode ended.
        env_steps: environment steps learned from.
        wall_s: seconds from start to end.
        signal: number of the signal that interrupted the run; None without a signal.
        stopped_by: the callback that stopped the run; None without one.
    """

    eval_mean: float | None
    best: float | None
    return_mean: float | None
    env_steps: int
    wall_s: float
    signal: int | None
    stopped_by: str | None = None

    def __str__(self) -> str:
        """The returns in words; the evaluation first, because the episodes lag behind it."""
        if self.eval_mean is None:
            return f"return {return_text(self.return_mean)}"
        episodes = "no episode ended"
        if self.return_mean is not None:
            episodes = f"last episodes {return_text(self.return_mean)}"
        return f"evaluation {return_text(self.eval_mean)}, {episodes}"

    def objective(self, name: str) -> float | None:
        """The number that a sweep's optimizer gets, by the setting `objective`."""
        steps_per_s = self.env_steps / self.wall_s if self.wall_s else None
        by_eval = self.return_mean if self.eval_mean is None else self.eval_mean
        by_name = {"eval": by_eval, "best": self.best, "return": self.return_mean}
        return {**by_name, "steps_per_s": steps_per_s, "wall_s": self.wall_s}[name]


def train(
    config: Config,
    directory: str | Path,
    overrides: Sequence[str] = (),
    resumed: dict[str, Any] | None = None,
    *,
    launched: bool = False,
    identity: str | None = None,
) -> RunResult:
    """Runs `config` and writes the results into `directory`.

    Args:
        config: the checked configuration.
        directory: the run's directory; earlier files are set aside unless the run is resumed.
        overrides: what the user typed, for run.json.
        resumed: the state to go on from, as `checkpoint.load` gives it; None for a new run.
        launched: whether the launcher of a sweep has begun status.json and counted this attempt.
        identity: hash of the settings as they were asked for; None for a hash of `config`, in which
            values that depend on the machine are filled in.

    Raises:
        ConfigError: the environment or the settings cannot work, or another run uses the
            directory; no sampler has started.
        WorkerError: a sampler or a learner ended.
        DirectoryLost: the directory was deleted or moved.
    """
    if not isinstance(config, Config):
        raise ConfigError(f"config={config!r}: give the result of walle.compose([...])")
    directory = Path(directory)
    if config.sampler.name == "process" or config.learners > 1:
        spawn._check_not_importing_main()  # type: ignore[attr-defined]  # explains __main__ guards
    if resumed:
        _refuse_another_run(resumed["config"], to_dict(config), directory)
    earlier_ns = int(resumed["recorder"]["wall_s"] * 1e9) if resumed else 0
    start_ns = time.monotonic_ns() - earlier_ns
    timer = Timer(AGENT_SECTIONS, trace=config.trace)
    torch.set_num_threads(config.learner.threads)  # before all else: QR's bits depend on it
    problem, probed = make_problem(config)
    algorithm = make_algorithm(config, problem)
    run = Run(config, directory, probed, problem, algorithm, timer, start_ns, resumed)
    extras = _make_extras(run)
    with run_directory(directory) as locked, Signals().installed() as signals:
        if resumed:
            checkpoint.clear_remains(directory / "checkpoints", resumed)
        again = (resumed is not None or set_aside_previous(directory)) and not launched
        write_provenance(directory, to_dict(config), list(overrides), resumed=resumed is not None)
        found = identity or config_hash(config)
        status = Status(locked, found, again=again, resumed=resumed is not None)
        with status.recording_failure():
            try:
                result = _run_on(run, extras, signals)
            except Interrupted:  # before the agent could learn
                result = RunResult(None, None, None, 0, run.wall_s, signals.received)
        value = result.objective(config.objective)
        status.end_with(result.signal, stop_reason(result.stopped_by), value)
    return result


def build_programs(composed: Sequence[DictConfig]) -> str | None:
    """Compiles what the agents of such runs would compile, so that they find it in the cache.

    What cannot be compiled is left to the runs, which say why.

    Returns:
        a line that says what was built; None if everything was in the cache.
    """
    begin_s, before, failed = time.monotonic(), built(), 0
    for config in _compiled_differently(composed):
        try:
            torch.set_num_threads(config.learner.threads)  # the programs depend on it
            make_algorithm(config, make_problem(config)[0]).warm_up()
        except Exception:  # noqa: BLE001  the run meets the same one
            traceback.print_exc()
            failed += 1
    programs, took_s = len(built() - before), time.monotonic() - begin_s
    texts = {
        "compiled programs built before the first job starts": programs,
        "settings that could not be compiled, whose jobs say why": failed,
    }
    told = [f"{text}: {count}" for text, count in texts.items() if count]
    return "; ".join([*told, f"{took_s:.0f} s"]) if told else None


def _compiled_differently(composed: Sequence[DictConfig]) -> Iterable[Config]:
    """One configuration for each program; none for runs that are not to compile."""
    found: dict[str, Config] = {}
    for config in map(validate, composed):
        sizes = config.lanes, config.batch_size, config.total_steps, config.schedule_steps
        learning = config.shards, config.learner.threads, config.device
        parts = config.algo, config.net, config.env, config.sampler.collect, config.rounds_vary
        if getattr(config.algo, "compile", "false") != "false":
            found.setdefault(repr((*parts, *sizes, *learning)), config)
    return found.values()


def _refuse_another_run(then: dict[str, Any], now: dict[str, Any], directory: Path) -> None:
    for key in ("seed", "batch_size", "env", "algo", "net"):
        if then[key] != now[key]:
            raise ConfigError(
                f"the checkpoint in {directory} is another run's: it has {key}={then[key]}, and "
                f"run.json has {now[key]}; put the run's own checkpoint back"
            )


class Extras(NamedTuple):
    """The user's callbacks, and the videos that it makes of its policy, if any."""

    callbacks: dict[str, Callback]
    filming: Filming | None


def _make_extras(run: Run) -> Extras:
    """Makes them before anything is written, because either may be refused."""
    return Extras(make_callbacks(run.config.callbacks), _make_filming(run))


def _run_on(run: Run, extras: Extras, signals: Signals) -> RunResult:
    """Runs; after the death of a learner, goes on from the checkpoint that the agent has left."""
    restarts = Restarts(run.config.learner.restarts, "learner.restarts")
    news = EventLog()
    while True:
        try:
            return _run(run, extras, signals, news)
        except WorkerDeathError as death:
            last = run.directory / "checkpoints" / checkpoint.LAST
            resumed = checkpoint.load(last) if last.exists() else run.resumed
            round_ = resumed["iteration"] if resumed else 0
            if refused := restarts.refusal(0, round_):
                raise WorkerError(f"{death}; {refused}") from death
            news = EventLog()
            news.replaced(str(death).partition(" ")[0], round_, str(death))
            algorithm = make_algorithm(run.config, run.problem)
            run = run._replace(algorithm=algorithm, resumed=resumed)
            extras = _make_extras(run)


def _run(run: Run, extras: Extras, signals: Signals, news: EventLog) -> RunResult:
    config = run.config
    trace_path = run.directory / "trace.csv" if config.trace else None
    if trace_path and not (run.resumed and trace_path.exists()):
        TraceFile.create(trace_path)
    tasks = make_tasks(run, trace_path)
    with ExitStack() as stack:
        stack.callback(end_orphans)
        learners = start_learners(config, run.problem)
        if learners is not None:
            stack.callback(learners.close)
        sampling = make_sampling(run, tasks, signals, learners)
        stack.callback(sampling.close)
        news.listen(sampling.events.report)
        if learners is not None:
            algorithm: Any = run.algorithm  # with shards, so also a `Learnable`
            learners.join(algorithm, config.device)
        outputs = make_outputs(run, trace_path, extras.filming)
        if run.resumed is None:
            for line in filter(None, (crowded(config), late_episodes(config, run.problem))):
                outputs.progress.say(line)
        agent = make_agent(run, sampling, outputs, extras.callbacks)
        stack.callback(agent.close)
        with suppress(Interrupted):
            agent.run(config.total_steps, signals)
        stopped_by = agent.callbacks.stopped_by
        if (reason := stop_reason(stopped_by)) and signals.received is None:
            outputs.progress.say(f"{reason} after {agent.env_steps:,} steps")
        return RunResult(*agent.returns, agent.env_steps, run.wall_s, signals.received, stopped_by)


def _make_filming(run: Run) -> Filming | None:
    """Films an episode now and then, if the run is to have videos.

    Raises:
        ConfigError: a package is missing, or the environment cannot be drawn.
    """
    every, resumed = run.config.logger.video_every, run.resumed
    if every is None:
        return None
    # These imports are slow, and few runs have videos.
    from walle.policy.acting import Origin
    from walle.policy.loading import policy_from
    from walle.policy.video import film_while_learning

    config = run.config
    origin = Origin(run.directory, config.algo.name, 0, config.seed)
    policy = policy_from(run.algorithm, run.probed.env, run.probed.lane, origin)
    ending = ".gif" if config.logger.name == "tensorboard" else ".mp4"
    due = Every(every, resumed["env_steps"] if resumed else 0)
    film = film_while_learning(run.directory, ending, policy, config.logger.video_steps)
    return Filming(due, film)
