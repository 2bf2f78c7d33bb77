"""Trains one policy: makes the parts of a run, connects them, loops and closes them.

`train` shows the order in which things happen; `Training` makes the parts and runs them. What
happens when a process dies:

- A sampler: `sampling.receive` starts another one with the same lanes, which repeats the round
  (walle.sampling.process_sampling). The agent waits longer, and the run has the same bits. After
  too many deaths, or a death with a traceback, `receive` raises `WorkerError` and the run fails.
- A learner: the update raises `WorkerDeathError`. The agent undoes the update and writes a
  checkpoint (`Agent.run`). All processes are closed, and `train` starts again from that checkpoint.
- This process: its workers notice and end. `resume=DIR` resumes from the last checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from omegaconf import OmegaConf

from walle import algos
from walle.agent import checkpoint
from walle.agent.agent import Agent
from walle.agent.callbacks import Callbacks, make_callbacks, stop_reason
from walle.agent.checkpoint import CheckpointFiles
from walle.agent.evaluation import Evaluator
from walle.agent.recorder import EpisodeTracker, Progress, Recorder
from walle.agent.run_directory import Status, set_aside_previous, write_provenance
from walle.agent.sinks import make_sinks
from walle.algos.base import Algorithm, Problem
from walle.config.loading import config_hash, validate, with_variables
from walle.config.schemas import Config, RaySampler, SerialSampler
from walle.envs import EnvSpec
from walle.envs.probe import Probe, probe
from walle.errors import CheckpointError, ConfigError, Interrupted, WorkerDeathError, WorkerError
from walle.nets.factory import NetSettings
from walle.policy.acting import stored_policy
from walle.policy.starting import Parent, continued
from walle.sampling.episodes import EpisodeQuota, capacity
from walle.sampling.lane_book import LaneBlock, deal
from walle.sampling.process_sampling import ProcessSampling, SerialSampling
from walle.sampling.rounds import split_lanes
from walle.sampling.sampler_process import SamplerTask
from walle.sampling.sampling import EventLog, Patience, Sampling
from walle.sampling.slots import RolloutShape, check_memory
from walle.streams import kept_globals
from walle.system.files import write_atomically
from walle.system.forkserver import end_orphans
from walle.system.format import count_text, return_text
from walle.system.importing import check_guard
from walle.system.locks import run_directory
from walle.system.machine import usable_cores
from walle.system.run_files import update_status
from walle.system.signals import Signals
from walle.system.supervision import Restarts, Watchdog
from walle.timing import AGENT_SECTIONS, Every, Timer, TraceFile, timestamp
from walle.types import PolicySnapshot

if TYPE_CHECKING:
    from walle.learning.sharing.learners import Learners


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
        directory: the run's directory; earlier files are moved to attempts/ unless the run is
            resumed.
        overrides: what the user typed, for run.json.
        resumed: the state to resume from, as `checkpoint.load` returns it; None for a new run.
        launched: whether the launcher of a sweep has created status.json and counted this attempt.
        identity: hash of the settings as they were typed; None for a hash of `config`, in which
            values that depend on the machine are filled in.

    Raises:
        ConfigError: the environment or the settings cannot work, or another run uses the
            directory; no sampler has started.
        WorkerError: a worker failed or died too often.
        DirectoryLost: the directory was deleted or moved.
    """
    if not isinstance(config, Config):
        raise ConfigError(f"config={config!r}: give the result of walle.compose([...])")
    validate(OmegaConf.create(asdict(config)), os.sep)  # a script may have changed it
    # Absolute, because an environment may change the working directory.
    directory, settings, changed = Path(directory).absolute(), asdict(config), False
    if config.sampler.name == "process" or config.learners > 1:
        check_guard()
    if resumed:
        file = checkpoint.resumed_file(directory / "checkpoints", resumed)
        keys = ("seed", "batch_size", "env", "algo", "net")
        groups: Any = {name: {} for name in (*keys[2:], "sampler", "learner", "logger")}
        needed = {"config": dict.fromkeys(keys) | groups, "recorder": {"wall_s": 0.0}, "info": []}
        needed |= {"env_steps": 0, "live": [], "lanes": []}
        checkpoint.check(file, resumed, needed)
        stored = dict(resumed["config"])
        for key in ("algo", "env", "net"):
            stored[key] = {**settings[key], **stored[key]}  # an earlier version has fewer settings
        stored["env"] = {**stored["env"], "on_error": config.env.on_error}  # this one may change
        for key in keys:
            if stored[key] != settings[key]:
                raise ConfigError(
                    f"the checkpoint in {directory} is another run's: it has {key}={stored[key]}, "
                    f"and run.json has {settings[key]}; put the run's own checkpoint back"
                )
        asked = ("objective", "schedule_steps", "total_steps")
        changed = any(stored.get(key, settings[key]) != settings[key] for key in asked)
    earlier_s = resumed["recorder"]["wall_s"] if resumed else 0.0
    timer = Timer(AGENT_SECTIONS, trace=config.trace, earlier_s=earlier_s)
    torch.set_num_threads(config.learner.threads)  # before all else: QR's bits depend on it

    # What the user got wrong is refused here, before anything is written.
    parent = Parent.read(config.start_from) if config.start_from and not resumed else None
    about = parent and {"checkpoint": str(parent.file), "env_steps": parent.state["env_steps"]}
    problem, environment = make_problem(config)
    if source := Parent(file, resumed) if resumed else parent:
        env = continued(environment.env, environment.lane, source, resumed=resumed is not None)
        environment = environment._replace(env=env)
    make_training = partial(Training, config, directory, timer, problem, environment, parent=parent)
    training = make_training(resumed)

    with run_directory(directory) as locked, Signals().installed() as signals:
        if resumed:
            checkpoint.clear_remains(directory / "checkpoints", resumed)
        replaced = resumed is None and set_aside_previous(directory)
        if replaced and not launched:
            shelf = os.path.relpath(directory / "attempts")
            training.news.append(f"the files of the earlier run here are in {shelf}")
        again = (resumed is not None or replaced) and not launched
        differ = not environment.env.exact or config.sampler.lag.free_running
        differ |= config.learner.threads > 1 or config.device != "cpu"
        more = {"bits_may_differ": differ, "parent": about}
        write_provenance(directory, settings, list(overrides), resumed=resumed is not None, **more)
        hash_ = identity or config_hash(config)
        if changed and not launched:  # then it is no job of the sweep that started it
            update_status(directory, config_hash=hash_)
        status = Status(locked, hash_, again=again, resumed=resumed is not None)
        restarts, events = Restarts(config.learner.restarts, "learner.restarts"), EventLog()
        result: RunResult | None = None
        with status.recording_failure():
            while result is None:
                try:
                    result = training.run(signals, events)
                except Interrupted:  # a signal arrived before the agent started
                    result = RunResult(None, None, None, 0, timer.wall_s, signals.received)
                except WorkerDeathError as death:  # of a learner: start again from the checkpoint
                    last = directory / "checkpoints" / checkpoint.LAST
                    resumed = checkpoint.load(last) if last.exists() else resumed
                    round_ = resumed["iteration"] if resumed else 0
                    if refused := restarts.refusal(0, round_):
                        raise WorkerError(f"{death}; {refused}") from death
                    events.replaced(str(death).partition(" ")[0], round_, str(death))
                    training = make_training(resumed)
        if result.signal is not None:
            status.interrupted(result.signal)
        else:
            # A launcher that was killed at this moment finds the result in status.json.
            value, reason = result.objective(config.objective), stop_reason(result.stopped_by)
            status.end("completed", exit_code=0, reason=reason, return_value=value)
    return result


@dataclass
class Training:
    """The parts of a run, made from its configuration and, if it is resumed, its checkpoint."""

    config: Config
    directory: Path
    timer: Timer
    problem: Problem
    environment: Probe
    resumed: dict[str, Any] | None
    parent: Parent | None = None  # of `start_from`

    def __post_init__(self) -> None:
        """Makes the algorithm, the callbacks and the camera; ConfigError if that fails."""
        config, environment, logger = self.config, self.environment, self.config.logger
        self._env_steps = self.resumed["env_steps"] if self.resumed else 0
        self._algorithm = make_algorithm(config, self.problem)
        self.news = []  # about the start
        if self.parent and not self.resumed:
            self.news.append(self.parent.start(self._algorithm, config, environment.lane))
        self._blocks = self._checked_lanes(self.resumed) if self.resumed else []
        self._callbacks = make_callbacks(config.callbacks)
        self._film: Callable[[PolicySnapshot, int], Path] | None = None
        if logger.video_every is not None:
            # These imports are slow, and few runs have videos.
            from walle.policy.acting import Origin, policy_from
            from walle.policy.video import film_while_learning

            origin = Origin(self.directory, config.algo.name, 0, config.seed)
            policy = policy_from(self._algorithm, environment.env, environment.lane, origin)
            ending = ".gif" if "tensorboard" in logger.names else ".mp4"
            self._film = film_while_learning(self.directory, ending, policy, logger.video_steps)

    def _checked_lanes(self, resumed: dict[str, Any]) -> list[LaneBlock]:
        """The lanes of a checkpoint, after its state was compared with that of the new parts."""
        algorithm, lanes = self._algorithm, self.config.lanes
        tracker = EpisodeTracker(range(lanes), 1)
        snapshot = {"version": 0, "vector": algorithm.snapshot().vector}
        lengths = dict.fromkeys(("iterations", "episodes", "timing", "eval"), 0)
        like: dict[str, Any] = {
            "algorithm": algorithm.state_dict(),
            "snapshot": snapshot,
            "live": [snapshot] * len(resumed["live"]),
            "lanes": [{"round": 0}] * len(resumed["lanes"]),
            "recorder": {"tracker": tracker.state_dict(), "eval_mean": None, "lengths": lengths},
            **dict.fromkeys(("iteration", "evaluations"), 0),
            "evaluation_is_due": False,
            "best": resumed.get("best") and 0.0,  # None before the first evaluation
            "replay": None if algorithm.replay is None else {"inserted": 0, "size": 0},
            "quota": {"mean_length": None} if self.config.whole_episodes else None,
        }
        file = checkpoint.resumed_file(self.directory / "checkpoints", resumed)
        checkpoint.check(file, resumed, like)
        blocks, fit = [], False
        with suppress(KeyError, TypeError, ValueError, IndexError, AttributeError):
            blocks = [LaneBlock.loaded(block) for block in resumed["lanes"]]
            numbers = [number for block in blocks for number in block.numbers.tolist()]
            fit = sorted(numbers) == [*range(lanes)] and all(
                {*map(len, block[2:5]), block.actions.shape[1]} == {len(block.numbers)}
                and block.obs.shape[1] in (0, self.problem.obs_dim)
                and np.isfinite(block.obs).all()
                for block in blocks
            )
        if not fit:
            raise CheckpointError(f"{file} is damaged: its lanes are not those of the run")
        return blocks

    def run(self, signals: Signals, events: EventLog) -> RunResult:
        """Starts the processes, connects them with the agent, runs it, and closes all.

        Raises WorkerDeathError for a killed learner, and Interrupted for a signal before learning.
        """
        config, timer = self.config, self.timer
        timer.switch("other")  # a learner may have died in an update
        with ExitStack() as stack:
            stack.callback(end_orphans)
            stack.enter_context(kept_globals())
            learners: Learners | None = None
            if config.learners > 1:
                # Most runs have one learner and can do without this import.
                from walle.learning.sharing.learners import Learners, make_learner_tasks

                make: Any = partial(algos.make, config.algo, NetSettings.of(config.net))
                threads = config.learner.threads
                tasks = make_learner_tasks(config.learners, make, self.problem, threads)
                learners = Learners(tasks)
                stack.callback(learners.close)
            trace = self.directory / "trace.csv" if config.trace else None
            if trace:
                earlier_s = self.resumed["recorder"]["wall_s"] if self.resumed else 0.0
                write_atomically(trace, TraceFile.start(trace, earlier_s))

            sampling = self._make_sampling(signals, learners, trace)
            stack.callback(sampling.close)
            if learners is not None:
                shared: Any = self._algorithm  # a `Learnable`: `make_algorithm` checked it
                learners.join(shared, config.device)

            agent = self._make_agent(sampling, trace, stack)
            events.listen(agent.recorder.news)
            problem, env = self.problem, self.environment.env
            news = self.news
            if self.resumed:
                news = schedule_change(self.resumed["config"], config, problem.action_space)
                if config.sampler.lag.free_running:
                    news.append("free-running: numbers differ from those of a run without a stop")
            else:
                news += warnings(config, problem.longest_episode, env, problem.action_space)
                for name in self.environment.unseen:
                    news.append(f"logger.info: {name} is not in the first steps' info")
                if (unsaved := self.environment.unsaved) and not config.whole_episodes:
                    news.append(f"if resumed, the run will start new episodes: {unsaved}")
            for line in news:
                agent.recorder.say(line)

            with suppress(Interrupted):
                agent.run(config.total_steps, signals)
            stopped_by = agent.callbacks.stopped_by
            if (reason := stop_reason(stopped_by)) and signals.received is None:
                agent.recorder.say(f"{reason} after {agent.env_steps:,} steps")
            tracker = agent.recorder.tracker
            means = agent.recorder.eval_mean, agent.best, tracker.return_mean
            counts = agent.env_steps, timer.wall_s
            whole = agent.env_steps / timer.wall_s  # a single round, which also compiled
            speed = agent.recorder.speed.means().get("env_steps_per_s", whole)
            return RunResult(*means, *counts, signals.received, stopped_by, tracker.faults, speed)

    def _make_sampling(
        self, signals: Signals, learners: Learners | None, trace: Path | None
    ) -> Sampling:
        """Starts the sampler processes, or for sampler=serial builds a sampler in this process."""
        config, environment, algorithm = self.config, self.environment, self._algorithm
        sampler, slots = config.sampler, config.slots
        spans = (trace, self.timer.start_ns) if trace else None
        tasks = make_tasks(config, self.problem, environment, algorithm, self._blocks, spans)
        shape = partial(rollout_shape, config, self.problem, environment)
        shapes = [shape(len(task.lanes)) for task in tasks]
        check_memory(shapes, slots, config.batch_size)
        if isinstance(sampler, SerialSampler):
            events = EventLog()
            watchdog = self._make_watchdog(events.report)
            return SerialSampling(tasks[0], shapes[0], signals, events, watchdog, learners)
        # Samplers draw different numbers from global generators, so lanes must not move then.
        moves = environment.moves and environment.env.exact and not config.whole_episodes
        patience = Patience(
            balance=sampler.balance and moves,
            restarts=sampler.restarts,
            timeout_s=sampler.timeout_s,
        )
        snapshot = algorithm.snapshot()
        if isinstance(sampler, RaySampler):
            # Few runs need these imports.
            from walle.sampling.cluster.members import ClusterSettings
            from walle.sampling.cluster.sampling import Plan, RaySampling

            plan = Plan(tasks[0], shape, len(snapshot.vector), slots, patience)
            cluster = ClusterSettings(
                sampler.address, sampler.nodes, sampler.per_node, sampler.mismatch
            )
            return RaySampling(
                plan, snapshot, cluster, lag=sampler.lag, signals=signals, others=learners
            )
        return ProcessSampling(
            tasks,
            shapes,
            lag=sampler.lag,
            vector_length=len(snapshot.vector),
            slots=slots,
            enough=1 if algorithm.capabilities.every_rollout else config.batch_size,
            max_staleness=config.algo.staleness_bound,
            signals=signals,
            patience=patience,
            others=learners,
        )

    def _make_watchdog(self, say: Callable[[str], None]) -> Watchdog:
        """Makes the watchdog over work in this process, with the samplers' time limit."""

        def record_end(text: str) -> None:
            ended = timestamp()
            update_status(self.directory, state="failed", exit_code=1, error=text, ended=ended)

        return Watchdog(self.config.sampler.timeout_s, say, record_end)

    def _make_agent(self, sampling: Sampling, trace: Path | None, stack: ExitStack) -> Agent:
        """Makes the agent with all its parts; `stack` closes those that need it."""
        config, directory, timer = self.config, self.directory, self.timer
        environment, algorithm, resumed = self.environment, self._algorithm, self.resumed
        settings, logger, lag = asdict(config), config.logger, config.sampler.lag
        options = {**logger.options, "job_type": config.algo.name}
        progress = Progress(logger.progress, config.total_steps, logger.print_every_s)
        stack.callback(progress.close)
        recorder = Recorder(
            directory=directory,
            timer=timer,
            tracker=EpisodeTracker(sampling.owners, logger.return_window, environment.env.info),
            lock_step=lag.lock_step,
            sinks=make_sinks(logger.names, directory, settings, options, resumed),
            progress=progress,
            trace=TraceFile(trace, "agent", timer.start_ns) if trace else None,
            video_is_due=Every(logger.video_every, self._env_steps),
            film_snapshot=self._film,
            env_steps=self._env_steps,
            earlier=resumed["recorder"] if resumed else None,
        )
        stack.callback(recorder.close)
        evaluator = None
        if config.eval.episodes:
            evaluator = Evaluator(
                environment.env,
                algorithm.policy_factory(),
                algorithm.obs_clip,
                episodes=config.eval.episodes,
                seed=config.seed,
                stochastic=config.eval.stochastic,
            )
            stack.callback(evaluator.close)
        is_due = Every(config.checkpoint.every, self._env_steps)
        policy, info = stored_policy(algorithm, environment.lane), list(environment.env.info)
        stored: Any = {"config": settings, "policy": policy, "info": info}
        if (offset := environment.env.offset) is not None:
            stored["offset"] = np.array(offset)
        checkpoints = CheckpointFiles(directory / "checkpoints", algorithm.replay, stored, is_due)
        agent = Agent(
            algorithm=algorithm,
            sampling=sampling,
            recorder=recorder,
            evaluator=evaluator,
            evaluation_is_due=Every(config.eval.every, self._env_steps),
            watchdog=self._make_watchdog(recorder.say),
            checkpoints=checkpoints,
            callbacks=Callbacks(self._callbacks, timer, directory, recorder),
            timer=timer,
            lag=lag,
            quota=EpisodeQuota(config.batch_size, config.lanes) if config.whole_episodes else None,
            # Other learners can die in the middle of an update, and so can samplers under lag. If
            # only samplers can, algorithms with a replay buffer keep no state before each update:
            # with their short rounds that would cost too much.
            undo=config.learners > 1 or (not lag.lock_step and algorithm.replay is None),
        )
        if resumed:
            agent.load_state_dict(resumed)
        return agent


def make_problem(config: Config) -> tuple[Problem, Probe]:
    """Builds the problem from a trial lane; ConfigError if the environment cannot be used."""
    env = EnvSpec.of(config.env, config.net.name, with_variables)
    env = replace(env, info=tuple(config.logger.info))
    watchdog = Watchdog(config.sampler.timeout_s, print, lambda _: None)
    with watchdog.over("the trial of the environment has lasted"):
        environment = probe(env, config.seed)
    lane = environment.lane
    if not lane.observation_space.shape[0]:
        raise ConfigError(f"{env.id} has empty observations: give them at least one entry")
    limit = lane.episode_limit
    if config.whole_episodes and limit is None:
        raise ConfigError(
            f"sampler.collect=episodes: {env.id} has no limit of an episode's steps, so an episode"
            " might never end; set env.episode_limit, or use sampler.collect=fixed"
        )
    problem = Problem(
        lane.observation_space,
        lane.action_space,
        lanes=config.lanes,
        total_steps=config.total_steps,
        schedule_steps=config.schedule_steps or config.total_steps,
        batch_size=config.batch_size,
        seed=config.seed,
        device=config.device,
        longest_episode=None if limit is None else -(-limit // env.frame_skip),
        rounds_vary=config.rounds_vary,
        shards=config.shards,
    )
    return problem, environment


def make_algorithm(config: Config, problem: Problem) -> Algorithm:
    """Builds the algorithm of `config`; ConfigError if its learners cannot share the updates."""
    algorithm = algos.make(config.algo, NetSettings.of(config.net), problem)
    if config.shards > 1 and not algorithm.optimizers():
        raise ConfigError(
            f"learner.shards={config.shards} with algo={config.algo.name}, whose updates cannot be "
            "divided; use learner.n=1, and learner.threads for more cores"
        )
    return algorithm


def make_tasks(
    config: Config,
    problem: Problem,
    environment: Probe,
    algorithm: Algorithm,
    blocks: Sequence[LaneBlock] = (),
    trace: tuple[Path, int] | None = None,
) -> list[SamplerTask]:
    """Makes a task with contiguous lanes for each sampler; for a cluster, one with all lanes.

    `blocks` are the lanes of a resumed run; `trace` is a file and the zero of its clock in ns.
    """
    lag, cores = config.sampler.lag, usable_cores()
    counted = not lag.free_running and not config.rounds_vary
    return [
        SamplerTask(
            index=i,
            env=environment.env,
            lanes=lanes,
            policy=algorithm.policy_factory,
            obs_dim=problem.obs_dim,
            clip=algorithm.obs_clip,
            seed=config.seed,
            lag=lag,
            rounds=problem.rounds if counted else None,
            core=cores[i % len(cores)] if config.sampler.pin else None,
            trace=trace,
            episodes_over=config.lanes if config.whole_episodes else None,
            start=deal(blocks, lanes),
        )
        for i, lanes in enumerate(split_lanes(config.lanes, config.n or 1))
    ]


def rollout_shape(config: Config, problem: Problem, environment: Probe, lanes: int) -> RolloutShape:
    """The shape of the rollouts of a sampler with `lanes` lanes."""
    batch_size = config.largest_batch or config.batch_size
    steps, packed, lane_state = batch_size // config.lanes, 0, environment.state_bytes
    if config.whole_episodes:  # all lanes in one column, one after the other
        assert problem.longest_episode is not None
        steps = capacity(batch_size, config.lanes, problem.longest_episode) * lanes
        lanes, packed, lane_state = 1, lanes, 0
    state = NetSettings.of(config.net).state_size
    space = problem.action_space
    action_dtype = "float32" if isinstance(space, gym.spaces.Box) else "int64"
    arrays = ((problem.obs_dim,), problem.obs_layout.dtype, space.shape or (), action_dtype)
    return RolloutShape(steps, lanes, *arrays, packed, state, lane_state, len(environment.env.info))


def warnings(config: Config, longest: int | None, env: EnvSpec, space: Any = None) -> Iterator[str]:
    """Warnings about settings that work, but perhaps not as intended."""
    if isinstance(space, gym.spaces.Box) and not space.is_bounded():
        fix = "set bounds with env.action_low and env.action_high"
        yield f"{env.id} has unbounded actions, and so is the noise of the policy; {fix}"
    n, cores, lanes, total = config.n, len(usable_cores()), config.lanes, config.total_steps
    if config.sampler.name == "process" and n > cores and config.env.name != "slow":
        yield (
            f"{n} samplers share {cores} cores: more than one for each core is faster only if "
            "environments wait; sampler.n=null takes one per physical core"
        )
    if not env.exact:
        yield (
            f"{env.id}: environments with equal seeds differ, by np.random, random, torch or "
            "shared state, so bits depend on sampler.n; draw from self.np_random"
        )
    last = (longest or 0) * lanes
    if last > total and not config.whole_episodes:
        yield (
            f"{lanes} lanes share {total:,} steps, and an episode takes up to {longest:,}: few or "
            "none end in training, so only evaluations may have returns; for more use "
            f"total_steps={last:_} or fewer sampler.lanes"
        )


def schedule_change(before: dict[str, Any], config: Config, space: Any) -> list[str]:
    """A line if a resumed run's schedules end at other steps than `before`; else an empty list."""
    algo, settings = asdict(config.algo), (before, asdict(config))
    was, now = (each.get("schedule_steps") or each["total_steps"] for each in settings)
    falls = {
        "learning rate": algo.get("schedule") == "linear",
        "exploration": "exploration_fraction" in algo,
        "noise": algo.get("log_std_end") is not None
        and NetSettings.of(config.net).has_log_std(space),
    }
    names = " and ".join(name for name in falls if falls[name])
    line = f"the schedule of {names} now ends at {now:,} steps instead of {was:,}"
    return [f"{line}; schedule_steps={was} keeps that"] if names and now != was else []


class RunResult(NamedTuple):
    """The result of a run."""

    eval_mean: float | None  # mean return of the last evaluation; None without evaluations
    best: float | None  # the highest mean return of an evaluation; None without evaluations
    return_mean: float | None  # mean return of the last episodes; None if no episode ended
    env_steps: int  # environment steps learned from
    wall_s: float  # seconds from start to end
    signal: int | None  # number of the signal that interrupted the run
    stopped_by: str | None = None  # the callback that stopped the run
    faults: int = 0  # steps of the environment that `env.on_error=reset` replaced
    steps_per_s: float = 0.0  # since the start or resume, over the rounds that did not compile

    def __str__(self) -> str:
        """The returns in words; the evaluation first, because the episodes lag behind it."""
        faults = f", {count_text(self.faults, 'fault')} of the environment" if self.faults else ""
        episodes = f"last training episodes {return_text(self.return_mean)}"
        if self.return_mean is None:
            episodes = "no episode ended"
        if self.eval_mean is None:
            return episodes + faults
        evaluation = f"evaluation {return_text(self.eval_mean)} (without exploration)"
        return f"{evaluation}, {episodes}{faults}"

    def objective(self, name: str) -> float | None:
        """The number that the setting `objective` names, for a sweep's optimizer."""
        by_eval = self.return_mean if self.eval_mean is None else self.eval_mean
        by_name = {"eval": by_eval, "best": self.best, "return": self.return_mean}
        return {**by_name, "steps_per_s": self.steps_per_s, "wall_s": self.wall_s}[name]
