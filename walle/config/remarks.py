"""Lines about settings that work, but perhaps not as they were meant."""

from __future__ import annotations

from walle.algos.problem import Problem
from walle.config.schemas import Config
from walle.system.machine import usable_cores


def crowded(config: Config) -> str | None:
    """A line for more samplers than cores; None if each has a core, or its environment waits."""
    cores = len(usable_cores())
    if config.sampler.name != "process" or config.n <= cores or config.env.name == "slow":
        return None
    return (
        f"{config.n} samplers share {cores} cores: more than one for each core is faster only if"
        " environments wait; sampler.n=null takes a sampler for each core"
    )


def late_episodes(config: Config, problem: Problem) -> str | None:
    """A line for a run that ends before an episode of full length can; None for any other run."""
    longest, lanes, total = problem.longest_episode, config.lanes, config.total_steps
    if longest is None or config.whole_episodes or longest * lanes <= total:
        return None
    return (
        f"episodes of {longest:,} steps in {lanes} lanes end after {longest * lanes:,} steps, the"
        f" run after {total:,}: returns come from evaluations and from episodes that end early;"
        " for more use fewer sampler.lanes or more total_steps"
    )
