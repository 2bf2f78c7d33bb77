"""The rows of iterations.csv and timing.csv, from what an iteration took: pure functions."""

from __future__ import annotations

from walle.agent.csv_file import Value
from walle.timing import AGENT_SECTIONS, SAMPLER_SECTIONS
from walle.types import IntArray

_ALL_SECTIONS = (*SAMPLER_SECTIONS[:-1], *AGENT_SECTIONS)


def durations(seconds: dict[str, float], collect_s: float, *, lock_step: bool) -> dict[str, Value]:
    """iteration_s, collect_s, learn_s, other_s and shares from an agent's sections.

    In lock-step `other_s` is what neither collecting nor learning took, so the three sum to
    `iteration_s`. With overlap they may sum to more; `other_s` is what the agent did besides
    learning and waiting.
    """
    iteration_s = sum(seconds.values())
    learn_s = seconds["update"]
    besides = collect_s if lock_step else seconds["wait_experience"]
    return {
        "iteration_s": iteration_s,
        "collect_s": collect_s,
        "learn_s": learn_s,
        "other_s": iteration_s - learn_s - besides,
        "collect_share": collect_s / iteration_s,
        "learn_share": learn_s / iteration_s,
    }


def lags(version: int, lag: IntArray) -> dict[str, Value]:
    """The learning policy's version, and how many versions behind it the lanes ([L]) acted."""
    return {
        "policy_version": version,
        "lag_mean": float(lag.mean()),
        "lag_max": int(lag.max()),
    }


def timing_row(process: str, iteration: int, seconds: dict[str, float]) -> dict[str, Value]:
    """A row of timing.csv; sections that the process does not have stay empty."""
    cells = {f"{name}_s": seconds.get(name) for name in _ALL_SECTIONS}
    total_s = sum(seconds.values())
    return {"process": process, "iteration": iteration, **cells, "total_s": total_s}
