"""Reads the costs of a round, with their spread, from the files of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from walle.analysis.loading.directories import BadInputError, Run, listed
from walle.analysis.measuring.cells import iterations_after_warmup
from walle.analysis.measuring.clocks import AGENT, timing_after_warmup
from walle.analysis.measuring.stats import FloatArray
from walle.analysis.measuring.times import LOCK_STEP, mode_of
from walle.analysis.planning.costs import (
    ACT_CALL_LANES,
    ENV_CALL_LANES,
    ROLLOUT_LANES,
    Costs,
    Setup,
)
from walle.analysis.runs import Sweep

MAY_DIFFER = {  # settings that a plan is about, and those without a part in its costs
    *("sampler.n", "sampler.max_lag", "sampler.slots", "sampler.name", "sampler.pin"),
    *("learner.n", "total_steps", "schedule_steps", "name", "trace", "seed", "sweep"),
}
NETWORKS = 2  # that learners may divide: policy and critic
# Of a core for a step of the environment `slow`, which only waits: in each of 64 processes on two
# cores (AMD EPYC). A single process, which finds cold caches after each wait, needs up to twice as
# much, but then nobody waits for its core.
SLOW_CPU_S = 0.11e-3
TRACE, ROUND, NONE = "the spans of trace.csv", "the samplers of each round", ""
SPANS = ["process", "section", "start_s", "end_s"]


@dataclass(frozen=True)
class Measured:
    """The rounds of runs of one setting, one entry of each array an iteration.

    Attributes:
        names: the runs.
        setup: their processes.
        steps: T, steps of a round in each lane.
        lanes: over all samplers.
        act_s: mean of the samplers' seconds in `act`.
        env_s: mean of the samplers' seconds in `env_step`.
        rollout_s: mean of the samplers' seconds in `other`.
        send_s: mean of the samplers' seconds in `send`.
        learn_s: seconds of learning.
        serial_s: seconds of the agent between a round's arrival and the next policy, without
            learning, evaluating and compiling; what grows with the samplers is in it.
        after_s: seconds of the agent after publishing.
        env_cpu_s: seconds of a core that a step of a lane needs; None: all its seconds.
        most_learners: the shards of a minibatch, or the networks, that learners divide.
        spread: seconds of samplers less their mean, over the root of the steps of a lane in them.
        spread_from: what `spread` was read from; '' for nothing.
    """

    names: tuple[str, ...]
    setup: Setup
    steps: float
    lanes: int
    act_s: FloatArray
    env_s: FloatArray
    rollout_s: FloatArray
    send_s: FloatArray
    learn_s: FloatArray
    serial_s: FloatArray
    after_s: FloatArray
    env_cpu_s: float | None
    most_learners: int
    spread: FloatArray
    spread_from: str

    def costs(self, rng: np.random.Generator | None = None) -> Costs:
        """The mean costs: of the iterations, or of as many drawn from them with `rng`."""
        rows = self._rows(len(self.learn_s), rng)
        spans = self._rows(len(self.spread), rng)
        own, steps = self.lanes / self.setup.samplers, max(1, round(self.steps))
        act_lane_s = float(self.act_s[rows].mean()) / steps / (ACT_CALL_LANES + own)
        record_lane_s = float(np.median(self.rollout_s[rows])) / (ROLLOUT_LANES + own)
        costs = Costs(
            steps=steps,
            lanes=self.lanes,
            act_call_s=ACT_CALL_LANES * act_lane_s,
            act_lane_s=act_lane_s,
            **self._env(float(self.env_s[rows].mean()) / steps, own),
            env_var=float(np.square(self.spread[spans]).mean()) if len(spans) else 0.0,
            rollout_s=ROLLOUT_LANES * record_lane_s,
            send_lane_s=record_lane_s + float(np.median(self.send_s[rows])) / own,
            after_s=float(np.median(self.after_s[rows])),
            most_learners=self.most_learners,
        )
        serial_s = float(np.median(self.serial_s[rows])) - costs.taking_s(self.setup)
        divided = replace(costs, learn_s=1.0).learning_s(self.setup.learners)
        learn_s = float(self.learn_s[rows].mean()) / divided
        return replace(costs, learn_s=learn_s, serial_s=max(0.0, serial_s))

    def _rows(self, number: int, rng: np.random.Generator | None) -> npt.NDArray[np.int64]:
        return np.arange(number) if rng is None else rng.integers(number, size=number)

    def _env(self, call_s: float, own: float) -> dict[str, float]:
        """The seconds of a call that steps `own` lanes, divided into their kinds."""
        if self.env_cpu_s is None:
            lane_s = call_s / (ENV_CALL_LANES + own)
            return {"env_call_s": ENV_CALL_LANES * lane_s, "env_cpu_s": lane_s}
        lane_s = call_s / own
        cpu_s = min(self.env_cpu_s, lane_s)
        return {"env_cpu_s": cpu_s, "env_wait_s": lane_s - cpu_s}


def read(sweep: Sweep, warmup: int, env_cpu_s: float | None) -> Measured:
    """The rounds of the simplest runs: in lock-step where there are any, of fewest samplers.

    Args:
        sweep: runs of one configuration but for `MAY_DIFFER`.
        warmup: iterations of each run that do not count.
        env_cpu_s: see `Measured`; None: all seconds, or what `env=slow` needs.

    Raises:
        BadInputError: the runs differ in other settings, or lack what a plan needs.
    """
    if others := [key for key in sweep.varying if key not in MAY_DIFFER]:
        raise BadInputError(
            f"a plan is for one configuration, and these runs differ in {listed(others)}: name "
            "the directory of one run, or of runs that differ in sampler.n"
        )
    runs = _simplest(sweep.runs)
    names = [run.name for run in runs]
    frame = iterations_after_warmup(sweep, warmup)
    rows = _rounds(frame[frame["run"].isin(names)], sweep, names, warmup)
    config = runs[0].config
    lanes, shards = config.get("sampler.lanes"), config.get("learner.shards")
    if divides_networks(config):
        shards = NETWORKS
    if not isinstance(lanes, int):
        raise BadInputError(f"{names[0]}: its configuration has no number of sampler.lanes")
    setup = _setup(runs[0])
    steps = float(rows["steps"].mean()) / lanes
    if env_cpu_s is None and "env.step_ms" in config:
        env_cpu_s = SLOW_CPU_S
    spread, spread_from = _spread(runs, rows, warmup, lanes / setup.samplers, steps)
    wanted = ("act_s", "env_s", "rollout_s", "send_s", "learn_s", "serial_s", "after_s")
    return Measured(
        names=tuple(names),
        setup=setup,
        steps=steps,
        lanes=lanes,
        env_cpu_s=env_cpu_s,
        most_learners=shards if isinstance(shards, int) else 1,
        spread=spread,
        spread_from=spread_from,
        **{name: rows[name].to_numpy(float) for name in wanted},
    )


def divides_networks(config: Mapping[str, Any]) -> bool:
    """Whether the learners of a run divide its networks instead of minibatches."""
    return config.get("learner.divide") == "networks"


def seconds(sweep: Sweep, warmup: int) -> list[tuple[Setup, FloatArray]]:
    """The setup of each run, and the seconds of its iterations without evaluating."""
    frame, found = iterations_after_warmup(sweep, warmup), []
    for run in sweep.runs:
        rows = _rounds(frame[frame["run"] == run.name], sweep, [run.name], warmup)
        values = (rows["iteration_s"] - rows["agent_evaluate_s"]) / rows["steps"]
        found.append((_setup(run), values.to_numpy(float)))
    return found


def _simplest(runs: list[Run]) -> list[Run]:
    def key(run: Run) -> tuple[bool, bool, int, int]:
        setup = _setup(run)
        return run.oversubscribed, mode_of(run) != LOCK_STEP, setup.samplers, setup.learners

    least = min(map(key, runs))
    return [run for run in runs if key(run) == least]


def _setup(run: Run) -> Setup:
    """The processes of a run; its own cores.

    Raises:
        BadInputError: its samplers were on several machines, so their number is not known.
    """
    if run.config.get("sampler.name") == "ray":
        raise BadInputError(
            f"{run.name}: a plan is made from a run on one machine, and this one has sampler=ray"
        )
    lag = run.config.get("sampler.max_lag", 0)
    return Setup(
        samplers=int(run.config.get("sampler.n", 1)),
        learners=int(run.config.get("learner.n", 1)),
        cores=run.cores or None,
        max_lag=None if lag == "null" else int(lag),
    )


def _rounds(frame: pd.DataFrame, sweep: Sweep, names: list[str], warmup: int) -> pd.DataFrame:
    """A row an iteration: its steps, the seconds of its parts, and its samplers' variance."""
    timing = timing_after_warmup(sweep, warmup)
    needed = {"act_s", "env_step_s", "send_s", "publish_s", "other_s", "evaluate_s", "log_s"}
    if not len(timing) or not needed <= set(timing) or "collect_s" not in frame:
        raise BadInputError("a plan needs iterations.csv and timing.csv of the run")
    timing = timing[timing["run"].isin(names)]
    keys = ["run", "iteration"]
    agent = timing[timing["process"].astype(str) == AGENT].groupby(keys, observed=True)
    samplers = timing[timing["process"].astype(str) != AGENT]
    samplers = samplers.rename(columns={"env_step_s": "env_s", "other_s": "rollout_s"})
    work = ["act_s", "env_s", "rollout_s", "send_s"]
    own = samplers.assign(busy_s=samplers[work].sum(axis=1)).groupby(keys, observed=True)
    found = own[work].mean()
    found["variance"] = own["busy_s"].var()
    sections = agent[["publish_s", "other_s", "evaluate_s", "log_s"]].sum()
    sections = sections.add_prefix("agent_")
    found = found.join(sections, how="inner")
    steps = frame.groupby("run", observed=True)["env_steps"].diff()
    found = found.join(
        frame.assign(steps=steps.fillna(frame["env_steps"] / frame["iteration"])).set_index(keys)[
            ["iteration_s", "collect_s", "learn_s", "steps"]
        ],
        how="inner",
    ).dropna(subset=["act_s", "env_s", "learn_s"])
    if not len(found):
        raise BadInputError(
            f"no iteration after the warm-up has the seconds of its samplers ({listed(names)}): "
            "run a few iterations more"
        )
    runs = {run.name: run for run in sweep.runs}
    lock_step = mode_of(runs[names[0]]) == LOCK_STEP
    within = (
        found["iteration_s"] - found["collect_s"] - found["learn_s"] - found["agent_evaluate_s"]
    )
    apart = found["agent_publish_s"] + found["agent_other_s"]
    return found.assign(
        serial_s=(within if lock_step else apart).clip(lower=0.0), after_s=found["agent_log_s"]
    ).reset_index()


def _spread(
    runs: list[Run], rows: pd.DataFrame, warmup: int, own: float, steps: float
) -> tuple[FloatArray, str]:
    """Seconds less their mean, scaled to a step of one lane; and where they come from."""
    traced = [
        (seconds - seconds.mean()) / np.sqrt(own)
        for run in runs
        if (run.path / "trace.csv").is_file()
        for seconds in _spans(run.path, round(steps) * warmup)
        if len(seconds) > 1
    ]
    if traced:
        return np.concatenate(traced), TRACE
    variance = rows["variance"].dropna().to_numpy(float)
    if len(variance):
        return np.sqrt(variance / (steps * own)), ROUND
    return np.empty(0), NONE


def _spans(path: Path, skipped: int) -> Iterator[FloatArray]:
    """For each sampler the seconds of its steps, without the first `skipped` steps."""
    trace = pd.read_csv(path / "trace.csv", usecols=SPANS, on_bad_lines="skip")
    steps = trace[trace["section"] == "env_step"]
    seconds = pd.to_numeric(steps["end_s"], errors="coerce") - steps["start_s"]
    for _, mine in seconds.groupby(steps["process"]):
        yield mine.dropna().to_numpy(float)[skipped:]
