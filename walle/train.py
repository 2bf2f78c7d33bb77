"""Start everything, run the agent, stop everything, whatever happens."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from walle.agent.agent import Outputs
from walle.agent.build import (
    check_learners,
    make_agent,
    make_algorithm,
    make_problem,
    make_sampling,
    make_sinks,
    make_tasks,
    start_learners,
)
from walle.agent.progress import make_progress
from walle.agent.provenance import write_provenance
from walle.agent.run_directory import Status, set_aside_previous
from walle.algos.base import Algorithm, Problem
from walle.config import config_hash, to_dict
from walle.config.schemas import Config
from walle.envs import EnvSpec
from walle.errors import Interrupted
from walle.processes.signals import Signals, stopped_by
from walle.timing import AGENT_SECTIONS, Timer, TraceFile


class Outcome(NamedTuple):
    """How a run ended.

    Attributes:
        return_mean: mean return of the last episodes; None if none ended.
        env_steps: environment steps learned from.
        wall_s: seconds from start to end.
        signal: the signal that interrupted the run, if one did.
    """

    return_mean: float | None
    env_steps: int
    wall_s: float
    signal: int | None


def train(config: Config, directory: Path, overrides: Sequence[str] = ()) -> Outcome:
    """Runs `config`, writing into `directory`.

    Raises:
        ConfigError: the environment or the combination of settings cannot work; nothing started.
        WorkerError: a sampler ended.
    """
    start_ns = time.monotonic_ns()
    timer = Timer(AGENT_SECTIONS, trace=config.trace)
    torch.set_num_threads(config.learner.threads)  # first: even QR's bits depend on it
    problem, env = make_problem(config)
    algorithm = make_algorithm(config, problem)
    check_learners(config, algorithm)
    directory.mkdir(parents=True, exist_ok=True)
    again = set_aside_previous(directory)
    write_provenance(directory, to_dict(config), list(overrides))
    with Signals().installed() as signals:  # first: a status that says "running" must end
        status = Status(directory, config_hash(config), again=again)
        with _reported(status):
            try:
                outcome = _run(config, directory, env, problem, algorithm, timer, start_ns, signals)
            except Interrupted:  # before there was anything to keep
                outcome = Outcome(None, 0, _seconds_since(start_ns), signals.received)
        _say_how_it_ended(status, outcome)
    return outcome


def _run(
    config: Config,
    directory: Path,
    env: EnvSpec,
    problem: Problem,
    algorithm: Algorithm,
    timer: Timer,
    start_ns: int,
    signals: Signals,
) -> Outcome:
    trace_path = _trace_path(config, directory)
    tasks = make_tasks(config, env, algorithm, problem, trace_path, start_ns)
    with ExitStack() as stack:
        learners = start_learners(config, problem)
        if learners is not None:
            stack.callback(learners.close)
        sampling = make_sampling(config, tasks, problem, algorithm, signals, learners)
        stack.callback(sampling.close)
        progress = make_progress(
            config.logger.progress, config.total_steps, config.logger.print_every_s
        )
        if learners is not None:
            learners.join(algorithm.optimizers(), config.device)
        trace = TraceFile(trace_path, "agent", start_ns) if trace_path else None
        sinks = make_sinks(config, directory)
        outputs = Outputs(directory, start_ns, to_dict(config), sinks, progress, trace)
        agent = make_agent(config, env, problem, algorithm, sampling, outputs, timer, tasks)
        stack.callback(agent.close)
        try:
            agent.run(config.total_steps, signals)
        except Interrupted:
            agent.save_last()
        wall_s = _seconds_since(start_ns)
        return Outcome(agent.return_mean, agent.env_steps, wall_s, signals.received)


def _seconds_since(start_ns: int) -> float:
    return (time.monotonic_ns() - start_ns) * 1e-9


@contextmanager
def _reported(status: Status) -> Iterator[None]:
    """Writes into status.json that the body failed, or was broken off."""
    try:
        yield
    except KeyboardInterrupt as stop:
        number = stopped_by(stop)
        name = signal.Signals(number).name
        status.end("interrupted", exit_code=128 + number, signal=name, error="interrupted twice")
        raise
    except BaseException as error:
        status.end("failed", exit_code=1, error=f"{type(error).__name__}: {error}")
        raise


def _say_how_it_ended(status: Status, outcome: Outcome) -> None:
    if outcome.signal is None:
        status.end("completed", exit_code=0)
    else:
        name = signal.Signals(outcome.signal).name
        status.end("interrupted", exit_code=128 + outcome.signal, signal=name)


def _trace_path(config: Config, directory: Path) -> Path | None:
    if not config.trace:
        return None
    path = directory / "trace.csv"
    TraceFile.create(path)
    return path
