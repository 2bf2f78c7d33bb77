"""The results of whole runs: seconds to a return, medians over seeds, and their table."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.turns import Launch

BASELINE = "walle"


class Mark(NamedTuple):
    """The steps and the return of a run after a round, `at_s` seconds after the command."""

    at_s: float
    env_steps: int
    return_mean: float | None


class Lap(NamedTuple):
    """A run of a contestant.

    Attributes:
        name: the contestant.
        seed: the seed of the run.
        completed: whether the run ended without an error within the time.
        total_s: seconds from the command to the end of the process.
        launch: times of the start; None if no round ended.
        marks: a mark for each round.
    """

    name: str
    seed: int
    completed: bool
    total_s: float
    launch: Launch | None
    marks: list[Mark]

    def reached(self, return_mean: float) -> float:
        """The seconds to a return; infinite if the run did not reach it."""
        found = (m.at_s for m in self.marks if (m.return_mean or -math.inf) >= return_mean)
        return next(found, math.inf)

    def stepped(self, env_steps: int) -> float:
        """The seconds to a number of steps; infinite if the run did not reach it."""
        return next((m.at_s for m in self.marks if m.env_steps >= env_steps), math.inf)

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        launch = self.launch._asdict() if self.launch else None
        return {**self._asdict(), "launch": launch}


def pace(marks: Sequence[Mark]) -> float:
    """The seconds a step after the first round; 0 for a single round."""
    steps = marks[-1].env_steps - marks[0].env_steps
    return (marks[-1].at_s - marks[0].at_s) / steps if steps else 0.0


def summary(laps: Sequence[Lap], returns: Sequence[float], steps: int) -> dict[str, dict[str, Any]]:
    """Medians over the seeds; None if most seeds did not reach the return."""
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(each.name for each in laps):
        mine = [each for each in laps if each.name == name]
        finals = [each.marks[-1].return_mean for each in mine if each.marks]
        launches = [each.launch for each in mine if each.launch]
        found[name] = {
            "seeds": len(mine),
            "to_return": {str(r): times([each.reached(r) for each in mine]) for r in returns},
            "to_steps": times([each.stepped(steps) for each in mine]),
            "whole": times([each.total_s if each.completed else math.inf for each in mine]),
            "final_returns": finals,
            **{f: median([getattr(each, f) for each in launches]) for f in Launch._fields},
        }
    return found


def times(seconds: Sequence[float]) -> dict[str, Any]:
    """The median and all values; None for a return that was not reached."""
    each = [s if math.isfinite(s) else None for s in seconds]
    return {"median_s": median(seconds), "seconds": each}


def median(values: Sequence[float]) -> float | None:
    """The median; None without values, or if it is infinite."""
    middle = statistics.median_low(values) if values else math.inf
    return middle if math.isfinite(middle) else None


def told(found: Lap) -> str:
    """A line about a run."""
    last = found.marks[-1] if found.marks else Mark(0.0, 0, None)
    mean = "none" if last.return_mean is None else f"{last.return_mean:,.0f}"
    end = "" if found.completed else ", not to the end"
    return (
        f"{found.name} seed {found.seed}: {last.env_steps:,} steps, return {mean}, "
        f"{found.total_s:.1f} s{end}"
    )


def table(found: Mapping[str, Mapping[str, Any]], returns: Sequence[float], steps: int) -> str:
    """The table of median seconds; brackets hold the ratio to walle's."""
    names = columns(returns, steps)
    head = "".join(f"{name:>17}" for name in names)
    lines = [f"{'':<18}{head}{'start-up':>10}{'compiling':>10}{'final':>8}"]
    base = places(found[BASELINE]) if BASELINE in found else [None] * len(names)
    for name, r in found.items():
        cells = "".join(f"{cell(*both):>17}" for both in zip(places(r), base, strict=True))
        ends = [mean for mean in r["final_returns"] if mean is not None]
        final = f"{statistics.mean(ends):,.0f}" if ends else "-"
        start = f"{cell(r['startup_s']):>10}{cell(r['compile_s']):>10}"
        lines.append(f"{name:<18}{cells}{start}{final:>8}")
    return "\n".join([*lines, *best_peers(found, returns)])


def ranges(found: Mapping[str, Mapping[str, Any]], returns: Sequence[float], steps: int) -> str:
    """The table of the least and the greatest seconds over the seeds."""
    head = "".join(f"{name:>17}" for name in columns(returns, steps))
    lines = [f"{'over the seeds':<18}{head}"]
    for name, row in found.items():
        spans = "".join(f"{span(one['seconds']):>17}" for one in timed(row))
        lines.append(f"{name:<18}{spans}")
    return "\n".join(lines)


def span(seconds: Sequence[float | None]) -> str:
    """The least and the greatest: "8.1-9.3 s"; "from 8.1 s" where a seed did not get there."""
    known = [one for one in seconds if one is not None]
    if not known:
        return "-"
    if len(known) < len(seconds):
        return f"from {min(known):.1f} s"
    return f"{min(known):.1f}-{max(known):.1f} s"


def columns(returns: Sequence[float], steps: int) -> list[str]:
    """The names of the columns with seconds."""
    return [*(f"to {r:,.0f}" for r in returns), f"{steps:,} steps", "whole process"]


def timed(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The seconds of a contestant, in the order of the columns."""
    return [*row["to_return"].values(), row["to_steps"], row["whole"]]


def places(row: Mapping[str, Any]) -> list[float | None]:
    """The medians, in the order of the columns."""
    return [found["median_s"] for found in timed(row)]


def cell(seconds: float | None, base: float | None = None) -> str:
    """A cell with seconds and their ratio to `base`."""
    if seconds is None:
        return "-"
    ratio = f" ({seconds / base:.2f})" if base else ""
    return f"{seconds:.1f} s{ratio}"


def best_peers(found: Mapping[str, Mapping[str, Any]], returns: Sequence[float]) -> list[str]:
    """A sentence for each return: walle, the quickest peer, the ratio."""
    sentences = []
    for r in returns:
        medians = {name: row["to_return"][str(r)]["median_s"] for name, row in found.items()}
        peers = {n: s for n, s in medians.items() if s and not n.startswith(BASELINE)}
        ours = medians.get(BASELINE)
        if not ours:
            continue
        if not peers:
            sentences.append(f"return {r:,.0f}: {BASELINE} {ours:.1f} s; no peer reached it")
            continue
        best = min(peers, key=lambda name: peers[name])
        sentences.append(
            f"return {r:,.0f}: {BASELINE} {ours:.1f} s; the quickest peer, {best}, "
            f"{peers[best]:.1f} s, {peers[best] / ours:.2f} times that"
        )
    return sentences
