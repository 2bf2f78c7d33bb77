"""Makes what a run is put together from: problem, algorithm, learners, samplers, agent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from walle import algos
from walle.agent.agent import Agent, Every, Outputs
from walle.agent.evaluation import Evaluator
from walle.agent.metrics import EpisodeTracker, Sink, TensorBoardSink, WandbSink
from walle.algos.base import Algorithm, Memory, NetSettings, Problem
from walle.collecting.episodes import EpisodeQuota, capacity
from walle.collecting.sampler import SamplerTask
from walle.config import to_dict
from walle.config.schemas import Config, GRUConfig
from walle.envs import EnvSpec, Lanes, make_lanes
from walle.errors import ConfigError, RolloutError, what_went_wrong
from walle.machine import memory_bytes, usable_cores
from walle.processes.signals import Signals
from walle.timing import Timer
from walle.transport.rounds import split_lanes
from walle.transport.sampling import ProcessSampling, Sampling, SerialSampling
from walle.transport.slots import RolloutShape

if TYPE_CHECKING:
    from walle.learning.learners import Learners


def make_problem(config: Config) -> tuple[Problem, EnvSpec]:
    """What the algorithm is told; a lane that takes a step shows whether the environment works."""
    env = EnvSpec(
        id=config.env.id,
        kwargs=config.env.kwargs,
        backend=config.env.backend,
        frame_skip=config.env.frame_skip,
        episode_limit=config.env.episode_limit,
        action=config.env.action,
        time_feature=config.env.time_feature,
    )
    probe = _tried(env, config.seed)
    spaces, limit = (probe.observation_space, probe.action_space), probe.episode_limit
    problem = Problem(
        *spaces,
        lanes=config.lanes,
        total_steps=config.total_steps,
        batch_size=config.batch_size,
        seed=config.seed,
        device=config.device,
        longest_episode=None if limit is None else -(-limit // env.frame_skip),
        rounds_vary=config.rounds_vary,
    )
    if config.whole_episodes and limit is None:
        raise ConfigError(
            f"sampler.collect=episodes: {env.id} sets its episodes no limit, so one might never"
            " end; give env.episode_limit, or use sampler.collect=fixed"
        )
    return problem, env


def _tried(env: EnvSpec, seed: int) -> Lanes:
    """A lane that was built, reset, stepped and closed.

    Raises:
        ConfigError: the environment, or what it was given, breaks on the way.
    """
    try:
        lane = make_lanes(env, [0], seed)
        lane.action_space.seed(seed)
        lane.reset()
        lane.step(np.asarray(lane.action_space.sample())[None])
        lane.close()
    except ConfigError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, RolloutError) else what_went_wrong(error)
        raise ConfigError(f"env.id={env.id} with env.kwargs={env.kwargs}: {what}") from error
    return lane


def make_algorithm(config: Config, problem: Problem) -> Algorithm:
    """The algorithm that `config` names, with its initial parameters."""
    return algos.load(config.algo.name)(config.algo, _net(config), problem)


def check_learners(config: Config, algorithm: Algorithm) -> None:
    """Refuses several learners where they could share nothing.

    Raises:
        ConfigError: the algorithm's updates are one learner's.
    """
    if config.learner.n > 1 and not algorithm.optimizers():
        raise ConfigError(
            f"learner.n={config.learner.n} with algo={config.algo.name}, whose updates one learner "
            f"takes; use learner.n=1, and learner.threads for more cores{_or_neural(config)}"
        )


def _or_neural(config: Config) -> str:
    linear = getattr(config.algo, "baseline", None) == "linear"
    return "; or algo.baseline=neural, whose updates can be shared" if linear else ""


def _net(config: Config) -> NetSettings:
    net = config.net
    return NetSettings(
        tuple(net.policy_hidden),
        tuple(net.critic_hidden),
        net.activation,
        net.log_std,
        Memory(net.hidden, net.sequence) if isinstance(net, GRUConfig) else None,
        net.scale,
    )


def start_learners(config: Config, problem: Problem) -> Learners | None:
    """The learners besides the agent, if there are to be any."""
    if config.learner.n == 1:
        return None
    from walle.learning.learners import Learners, make_learner_tasks

    name, threads = config.algo.name, config.learner.threads
    return Learners(
        make_learner_tasks(config.learner.n, name, config.algo, _net(config), problem, threads)
    )


def make_tasks(
    config: Config,
    env: EnvSpec,
    algorithm: Algorithm,
    problem: Problem,
    trace_path: Path | None,
    start_ns: int,
) -> list[SamplerTask]:
    """One task a sampler, the lanes dealt in contiguous blocks."""
    cores = usable_cores()
    counted = config.sampler.max_lag is not None and not config.rounds_vary
    return [
        SamplerTask(
            index=i,
            env=env,
            lanes=lanes,
            policy=algorithm.policy_factory,
            obs_dim=problem.obs_dim,
            clip=algorithm.obs_clip,
            seed=config.seed,
            max_lag=config.sampler.max_lag,
            rounds=problem.rounds if counted else None,
            core=cores[i % len(cores)] if config.sampler.pin else None,
            trace=(trace_path, start_ns) if trace_path else None,
            episodes_over=config.lanes if config.whole_episodes else None,
        )
        for i, lanes in enumerate(split_lanes(config.lanes, config.n))
    ]


def make_shape(config: Config, problem: Problem, lanes: int) -> RolloutShape:
    """The arrays of a sampler that has `lanes` lanes."""
    discrete = isinstance(problem.action_space, gym.spaces.Discrete)
    batch_size = config.largest_batch or config.batch_size
    steps, packed = batch_size // config.lanes, 0
    if config.whole_episodes:
        assert problem.longest_episode is not None
        steps = capacity(batch_size, config.lanes, problem.longest_episode) * lanes
        lanes, packed = 1, lanes
    return RolloutShape(
        steps=steps,
        lanes=lanes,
        obs=(problem.obs_dim,),
        obs_dtype="float32",
        action=() if discrete else (problem.action_space.shape or ()),
        action_dtype="int64" if discrete else "float32",
        packed=packed,
        state=config.net.hidden if isinstance(config.net, GRUConfig) else 0,
    )


def check_memory(config: Config, round_bytes: int) -> None:
    """Refuses rounds that this machine cannot hold; beyond its memory a process is just killed.

    Raises:
        ConfigError: the slots of all samplers are larger than the machine's memory.
    """
    assert config.sampler.slots is not None
    needed = round_bytes * config.sampler.slots
    there = memory_bytes()
    if needed > there:
        raise ConfigError(
            f"batch_size={config.batch_size} with sampler.slots={config.sampler.slots} needs "
            f"{needed / 1e9:,.0f} GB of shared memory, and this machine has {there / 1e9:,.0f}; "
            "use a smaller batch_size, or a smaller sampler.max_lag"
        )


def make_sampling(
    config: Config,
    tasks: list[SamplerTask],
    problem: Problem,
    algorithm: Algorithm,
    signals: Signals,
    learners: Learners | None,
) -> Sampling:
    """Starts the samplers, or builds the one that is this process itself."""
    shapes = [make_shape(config, problem, len(task.lanes)) for task in tasks]
    check_memory(config, sum(shape.bytes for shape in shapes))
    if config.sampler.name == "serial":
        return SerialSampling(tasks[0], shapes[0], signals, learners)
    assert config.sampler.slots is not None
    return ProcessSampling(
        tasks,
        shapes,
        vector_length=len(algorithm.snapshot().vector),
        slots=config.sampler.slots,
        enough=1 if algorithm.capabilities.every_rollout else config.batch_size,
        signals=signals,
        others=learners,
    )


def make_sinks(config: Config, directory: Path) -> list[Sink]:
    """Where metrics go besides the files."""
    makers: dict[str, Callable[[], list[Sink]]] = {
        "files": list,
        "tensorboard": lambda: [TensorBoardSink(directory / "tensorboard")],
        "wandb": lambda: [_wandb(config, directory)],
    }
    return makers[config.logger.name]()


def _wandb(config: Config, directory: Path) -> Sink:
    options: Any = config.logger
    return WandbSink(
        directory,
        to_dict(config),
        {
            "project": options.project,
            "entity": options.entity,
            "group": options.group,
            "job_type": config.algo.name,
            "mode": options.mode,
        },
    )


def make_agent(
    config: Config,
    env: EnvSpec,
    problem: Problem,
    algorithm: Algorithm,
    sampling: Sampling,
    outputs: Outputs,
    timer: Timer,
    tasks: list[SamplerTask],
) -> Agent:
    """The agent, with its evaluation, its cadences and its files."""
    sampler_of_lane = np.repeat([t.index for t in tasks], [len(t.lanes) for t in tasks]).tolist()
    evaluator = None
    if config.eval.every is not None:
        evaluator = Evaluator(
            env,
            algorithm.policy_factory(),
            problem.obs_dim,
            algorithm.obs_clip,
            episodes=config.eval.episodes,
            seed=config.seed,
        )
    return Agent(
        algorithm,
        sampling,
        EpisodeTracker(sampler_of_lane, config.logger.return_window),
        evaluator,
        outputs,
        timer,
        lock_step=config.sampler.max_lag == 0,
        quota=EpisodeQuota(config.batch_size, config.lanes) if config.whole_episodes else None,
        should_evaluate=Every(config.eval.every),
        should_save=Every(config.checkpoint.every),
    )
