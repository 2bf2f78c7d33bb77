"""Builds the parts of a run: problem, algorithm, learners, samplers, outputs and agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from walle import algos
from walle.agent.agent import Agent
from walle.agent.cadence import Every
from walle.agent.callbacks.base import Callback
from walle.agent.callbacks.calling import Callbacks
from walle.agent.episode_tracker import EpisodeTracker
from walle.agent.evaluation import Evaluator
from walle.agent.progress import make_progress
from walle.agent.recorder import Filming, Outputs, Recorder
from walle.agent.sinks import make_sinks
from walle.algos.base import Algorithm
from walle.algos.problem import Problem
from walle.config import to_dict, with_variables
from walle.config.schemas import Config, RaySamplerConfig
from walle.envs import EnvSpec
from walle.envs.probe import Probe, probe
from walle.errors import ConfigError
from walle.nets.factory import NetSettings
from walle.policy.loading import stored_policy
from walle.sampling.episodes import EpisodeQuota, capacity
from walle.sampling.lane_book import LaneBlock, deal
from walle.sampling.process_sampling import ProcessSampling
from walle.sampling.rounds import split_lanes
from walle.sampling.sampler_process import SamplerTask
from walle.sampling.sampling import EventLog, Patience, Sampling
from walle.sampling.serial_sampling import SerialSampling
from walle.sampling.slots import RolloutShape, check_memory
from walle.system.machine import usable_cores
from walle.system.run_files import update_status
from walle.system.signals import Signals
from walle.system.supervision import Watchdog
from walle.timing import Timer, TraceFile, timestamp
from walle.types import Lag

if TYPE_CHECKING:
    from walle.learning.sharing.learners import Learners


class Run(NamedTuple):
    """The parts of a run before its processes start.

    Attributes:
        config: the checked configuration.
        directory: the run's directory.
        probed: the environment, as a trial found it.
        problem: description of the run for the algorithm.
        algorithm: the algorithm with its initial parameters.
        timer: the agent's timer, started when the run began.
        start_ns: the run's start on the monotonic clock.
        resumed: the state to go on from; None for a new run.
    """

    config: Config
    directory: Path
    probed: Probe
    problem: Problem
    algorithm: Algorithm
    timer: Timer
    start_ns: int
    resumed: dict[str, Any] | None = None

    @property
    def wall_s(self) -> float:
        """The seconds since the run began."""
        return (time.monotonic_ns() - self.start_ns) * 1e-9


def make_problem(config: Config) -> tuple[Problem, Probe]:
    """Builds the problem from a trial lane, which takes a step to test the environment.

    Raises:
        ConfigError: the environment does not work, or does not fit the settings.
    """
    env = EnvSpec.of(config.env, with_variables(config.env.kwargs))
    probed = _probed(env, config.seed)
    lane = probed.lane
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
    return problem, probed


def _probed(env: EnvSpec, seed: int) -> Probe:
    """Tries the environment; one that hangs is named after a minute and given up after two."""
    watched = Watchdog(None, print, lambda _: None).over("the trial of the environment")
    with watched:
        return probe(env, seed)


def make_algorithm(config: Config, problem: Problem) -> Algorithm:
    """Builds the algorithm of `config` with its initial parameters.

    Raises:
        ConfigError: several learners are configured, and they cannot share the updates.
    """
    name = config.algo.name
    algorithm = algos.make(config.algo, NetSettings.of(config.net), problem)
    if config.shards > 1 and not algorithm.optimizers():
        raise ConfigError(
            f"learner.shards={config.shards} with algo={name}, whose updates cannot be divided; "
            f"{config.algo.single_learner_cure}"
        )
    return algorithm


def start_learners(config: Config, problem: Problem) -> Learners | None:
    """Starts all learners except the agent; returns None if the agent is the only learner."""
    if config.learners == 1:
        return None
    # This import is left out of most runs, which have one learner.
    from walle.learning.sharing.learners import Learners, make_learner_tasks

    make: Any = partial(algos.make, config.algo, NetSettings.of(config.net))
    return Learners(make_learner_tasks(config.learners, make, problem, config.learner.threads))


def make_tasks(run: Run, trace_path: Path | None) -> list[SamplerTask]:
    """Makes a task with contiguous lanes for each sampler; one with all lanes for a cluster."""
    config, cores, lag = run.config, usable_cores(), Lag(run.config.sampler.max_lag)
    counted = not lag.free_running and not config.rounds_vary
    blocks = [LaneBlock.loaded(each) for each in run.resumed["lanes"]] if run.resumed else []
    return [
        SamplerTask(
            index=i,
            env=run.probed.env,
            lanes=lanes,
            policy=run.algorithm.policy_factory,
            obs_dim=run.problem.obs_dim,
            clip=run.algorithm.obs_clip,
            seed=config.seed,
            lag=lag,
            rounds=run.problem.rounds if counted else None,
            core=cores[i % len(cores)] if config.sampler.pin else None,
            trace=(trace_path, run.start_ns) if trace_path else None,
            episodes_over=config.lanes if config.whole_episodes else None,
            start=deal(blocks, lanes),
        )
        for i, lanes in enumerate(split_lanes(config.lanes, config.n or 1))
    ]


def make_sampling(
    run: Run, tasks: list[SamplerTask], signals: Signals, learners: Learners | None
) -> Sampling:
    """Starts the sampler processes, or builds a sampler in this process for sampler=serial.

    Raises:
        ConfigError: the rounds need more memory than this machine has.
    """
    config, slots = run.config, run.config.slots
    shapes = [rollout_shape(run, len(task.lanes)) for task in tasks]
    check_memory(shapes, slots, config.batch_size)
    if config.sampler.name == "serial":
        events = EventLog()
        return SerialSampling(
            tasks[0], shapes[0], signals, events, make_watchdog(run, events.report), learners
        )
    snapshot = run.algorithm.snapshot()
    patience = Patience(balances(run), config.sampler.restarts, config.sampler.timeout_s)
    if isinstance(config.sampler, RaySamplerConfig):
        # Few runs need these imports.
        from walle.sampling.cluster.members import ClusterSettings
        from walle.sampling.cluster.pools import Plan
        from walle.sampling.cluster.sampling import RaySampling

        shape, cluster = partial(rollout_shape, run), ClusterSettings.of(config.sampler)
        plan = Plan(tasks[0], shape, len(snapshot.vector), slots, patience)
        return RaySampling(plan, snapshot, cluster, signals=signals, others=learners)
    return ProcessSampling(
        tasks,
        shapes,
        vector_length=len(snapshot.vector),
        slots=slots,
        enough=1 if run.algorithm.capabilities.every_rollout else config.batch_size,
        max_staleness=config.algo.staleness_bound,
        signals=signals,
        patience=patience,
        others=learners,
    )


def balances(run: Run) -> bool:
    """Whether lanes are dealt by speed: where states are cheap to move, and rounds are complete."""
    sampler = run.config.sampler
    exact = sampler.max_lag is not None and not run.config.whole_episodes
    return sampler.balance and exact and run.probed.moves


def rollout_shape(run: Run, lanes: int) -> RolloutShape:
    """The shape of the rollouts of a sampler with `lanes` lanes."""
    config, problem = run.config, run.problem
    lane_state = 0 if config.whole_episodes else run.probed.state_bytes
    batch_size = config.largest_batch or config.batch_size
    steps, packed = batch_size // config.lanes, 0
    if config.whole_episodes:
        assert problem.longest_episode is not None
        steps = capacity(batch_size, config.lanes, problem.longest_episode) * lanes
        lanes, packed = 1, lanes
    state = NetSettings.of(config.net).state_size
    sizes = (packed, state, lane_state, problem.obs_layout.dtype)
    return RolloutShape.of(steps, lanes, problem.obs_dim, problem.action_space, *sizes)


def make_outputs(run: Run, trace_path: Path | None, filming: Filming | None) -> Outputs:
    """Makes the files, the sinks and the display of the run."""
    config, logger = run.config, run.config.logger
    options = {**logger.options, "job_type": config.algo.name}
    resumed_at = run.resumed["env_steps"] if run.resumed else None
    return Outputs(
        run.directory,
        run.start_ns,
        make_sinks(logger.name, run.directory, to_dict(config), options, resumed_at),
        make_progress(logger.progress, config.total_steps, logger.print_every_s),
        TraceFile(trace_path, "agent", run.start_ns) if trace_path else None,
        filming,
    )


def make_watchdog(run: Run, say: Callable[[str], None]) -> Watchdog:
    """Makes the watchdog over work in this process, with the samplers' time limit."""

    def last_words(text: str) -> None:
        ended = timestamp()
        update_status(run.directory, state="failed", exit_code=1, error=text, ended=ended)

    return Watchdog(run.config.sampler.timeout_s, say, last_words)


def make_agent(
    run: Run,
    sampling: Sampling,
    outputs: Outputs,
    callbacks: Mapping[str, Callback],
) -> Agent:
    """Makes the agent with its evaluator, its cadences, its recorder and its callbacks."""
    config, algorithm, lag = run.config, run.algorithm, Lag(run.config.sampler.max_lag)
    tracker = EpisodeTracker(sampling.owners, config.logger.return_window)
    evaluator = None
    if config.eval.every is not None:
        evaluator = Evaluator(
            run.probed.env,
            algorithm.policy_factory(),
            run.problem.obs_dim,
            algorithm.obs_clip,
            episodes=config.eval.episodes,
            seed=config.seed,
            stochastic=config.eval.stochastic,
        )
    resumed = run.resumed
    earlier = resumed["recorder"] if resumed else None
    env_steps = resumed["env_steps"] if resumed else 0
    recorder = Recorder(outputs, tracker, lock_step=lag.lock_step, earlier=earlier)
    agent = Agent(
        algorithm,
        sampling,
        recorder,
        evaluator,
        run.timer,
        directory=run.directory,
        config=to_dict(config),
        policy=stored_policy(algorithm, run.probed.lane),
        lag=lag,
        quota=EpisodeQuota(config.batch_size, config.lanes) if config.whole_episodes else None,
        should_evaluate=Every(config.eval.every, env_steps),
        should_save=Every(config.checkpoint.every, env_steps),
        shared=config.learners > 1,
        watchdog=make_watchdog(run, outputs.progress.say),
        callbacks=Callbacks(callbacks, run.timer, run.directory, recorder),
    )
    if resumed:
        agent.load_state_dict(resumed)
    return agent
