"""What whole runs came to: seconds to a return, medians over seeds, and the table of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.turns import Launch

BASELINE = "walle"


class Mark(NamedTuple):
    """How far a run had got `at_s` seconds after the command: a round is learned from."""

    at_s: float
    env_steps: int
    return_mean: float | None


class Lap(NamedTuple):
    """One run.

    Attributes:
        name: whose.
        seed: of the run.
        completed: whether it ended by itself, and well, within the time.
        total_s: from the command to the end of the process.
        launch: what its start took; None if it never ended a round.
        marks: one a round.
    """

    name: str
    seed: int
    completed: bool
    total_s: float
    launch: Launch | None
    marks: list[Mark]

    def reached(self, return_mean: float) -> float:
        """Seconds to that return; infinite if it was never reached."""
        found = (m.at_s for m in self.marks if (m.return_mean or -math.inf) >= return_mean)
        return next(found, math.inf)

    def stepped(self, env_steps: int) -> float:
        """Seconds to so many steps; infinite if it never came to that."""
        return next((m.at_s for m in self.marks if m.env_steps >= env_steps), math.inf)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        launch = self.launch._asdict() if self.launch else None
        return {**self._asdict(), "launch": launch}


def pace(marks: Sequence[Mark]) -> float:
    """Seconds a step after the first round; 0 where there was but one."""
    steps = marks[-1].env_steps - marks[0].env_steps
    return (marks[-1].at_s - marks[0].at_s) / steps if steps else 0.0


def summary(laps: Sequence[Lap], returns: Sequence[float], steps: int) -> dict[str, dict[str, Any]]:
    """Medians over the seeds; a time that most of them never reached is None."""
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
    """Median and each; None for never."""
    each = [s if math.isfinite(s) else None for s in seconds]
    return {"median_s": median(seconds), "seconds": each}


def median(values: Sequence[float]) -> float | None:
    """None where there is none, or where it is infinite."""
    middle = statistics.median_low(values) if values else math.inf
    return middle if math.isfinite(middle) else None


def told(found: Lap) -> str:
    """One run in one line."""
    last = found.marks[-1] if found.marks else Mark(0.0, 0, None)
    mean = "none" if last.return_mean is None else f"{last.return_mean:,.0f}"
    end = "" if found.completed else ", not to the end"
    return (
        f"{found.name} seed {found.seed}: {last.env_steps:,} steps, return {mean}, "
        f"{found.total_s:.1f} s{end}"
    )


def table(found: Mapping[str, Mapping[str, Any]], returns: Sequence[float], steps: int) -> str:
    """For people: median seconds, and how many times walle's in brackets."""
    columns = [*(f"to {r:,.0f}" for r in returns), f"{steps:,} steps", "whole process"]
    head = "".join(f"{column:>17}" for column in columns)
    lines = [f"{'':<18}{head}{'start-up':>10}{'compiling':>10}{'final':>8}"]
    base = places(found[BASELINE]) if BASELINE in found else [None] * len(columns)
    for name, r in found.items():
        cells = "".join(f"{cell(*both):>17}" for both in zip(places(r), base, strict=True))
        ends = [mean for mean in r["final_returns"] if mean is not None]
        final = f"{statistics.mean(ends):,.0f}" if ends else "-"
        start = f"{cell(r['startup_s']):>10}{cell(r['compile_s']):>10}"
        lines.append(f"{name:<18}{cells}{start}{final:>8}")
    return "\n".join([*lines, *best_peers(found, returns)])


def places(row: Mapping[str, Any]) -> list[float | None]:
    """The medians in the order of the table's columns."""
    each = [*row["to_return"].values(), row["to_steps"], row["whole"]]
    return [found["median_s"] for found in each]


def cell(seconds: float | None, base: float | None = None) -> str:
    """Seconds, and their ratio to `base`."""
    if seconds is None:
        return "-"
    ratio = f" ({seconds / base:.2f})" if base else ""
    return f"{seconds:.1f} s{ratio}"


def best_peers(found: Mapping[str, Mapping[str, Any]], returns: Sequence[float]) -> list[str]:
    """For each return a sentence: walle, the quickest of the others, the ratio."""
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
