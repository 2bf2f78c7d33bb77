"""The costs of a round, read from short runs, and its time with other numbers of processes.

A round of N samplers, L learners and `sampler.max_lag` k takes the longest of four times:

    (collect + late + arrive + learn + agent) / (k + 1)    in lock-step they follow each other
    collect + late / (k + 1)                               late: the slowest sampler's delay
    learn + agent
    core seconds of the agent's machine / its cores

`arrive` is the time of messages between machines. docs/planning.md names what each of them depends
on, and how far the model is from real runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import pandas as pd

from walle.analysis.measuring import wall_clock
from walle.analysis.measuring.stats import TAIL, FloatArray, Interval
from walle.analysis.measuring.wall_clock import AGENT
from walle.analysis.runs import LOCK_STEP, BadInputError, Run, Sweep, read_tables
from walle.analysis.writing.format import listed

# The fixed cost of a call of the policy, of a call of the environment and of a rollout, as the
# number of lanes that cost as much (fits to HalfCheetah's times in benchmarks/measured/lanes.json).
ACT_CALL_LANES, ENV_CALL_LANES, ROLLOUT_LANES = 44.0, 1.9, 60.0
# Seconds of the agent for each sampler and round: copying a rollout, waking, looking after all
# samplers.
SAMPLER_S = 35e-6 + 3e-6 + 1.5 * 4.5e-6
MACHINE_S = 35e-6  # of the agent for each other machine and round
COPY_BYTES_S = 4e9  # of one core, for what other machines send
POLICY_BYTES = 100e3
# Core seconds that a step of `env=slow`, which otherwise only waits, takes in each of 64 processes
# on two cores.
SLOW_CPU_S = 0.11e-3
# The share of learning that learners divide: 83% [78, 88] by whole runs (docs/study.md), 91% to 94%
# by sections of rounds (benchmarks/measured/serial*.json).
DIVISIBLE = 0.83, 0.94
# The model's largest errors against real runs: on two cores in lock-step with a core for each
# process, on two cores otherwise, and on 16 virtual cores (benchmarks/measured/sixteen_cores.csv).
ERROR, ERROR_SHARED, ERROR_MANY = 0.10, 0.30, 0.50
DRAWS = 400
MAY_DIFFER = {  # settings that a plan varies, and those that do not affect its costs
    *("sampler.n", "sampler.max_lag", "sampler.slots", "sampler.name", "sampler.pin"),
    *("learner.n", "total_steps", "schedule_steps", "name", "trace", "seed", "sweep"),
}
TRACE, ROUND, NONE = "the spans of trace.csv", "the samplers of each round", ""


@dataclass(frozen=True)
class Setup:
    """The processes of a run, their machines, and the shape of a round."""

    steps: int  # of each lane in a round
    lanes: int  # over all samplers
    samplers: int = 1  # dealt to the machines evenly
    learners: int = 1  # all on the first machine, like the agent
    machines: int = 1
    cores: int | None = None  # of each machine; None: as many as there are processes
    max_lag: int | None = 0  # None: free-running
    bandwidth: float = 1.25e9  # bytes a second of the agent's link
    latency_s: float = 0.5e-3  # of an empty message between machines, one way
    exchange_s: float = 10e-3  # that the software adds to a message and its answer
    step_bytes: float = 200.0  # the experience of one environment step

    @property
    def round_steps(self) -> int:
        """Environment steps of a round."""
        return self.steps * self.lanes

    @property
    def dealt(self) -> tuple[int, ...]:
        """The number of samplers on each machine that has any, the largest first."""
        used = min(self.machines, self.samplers)
        share, more = divmod(self.samplers, used)
        return (share + 1,) * more + (share,) * (used - more)

    @property
    def busy(self) -> int:
        """Processes of the first machine that want a core at once."""
        processes = (self.dealt[0], self.learners)
        return max(processes) if self.max_lag == 0 else sum(processes)


@dataclass(frozen=True)
class Costs:
    """Mean seconds of the parts of a measured round.

    Arrays are [1 + DRAWS]: the mean over the iterations, then its bootstrap replicates.
    """

    measured: Setup
    iterations: int
    act_s: FloatArray  # of a sampler, in this section and the next three
    env_s: FloatArray
    other_s: FloatArray
    send_s: FloatArray
    learn_s: FloatArray
    agent_s: FloatArray  # from a round's arrival to the next policy, without learning and SAMPLER_S
    after_s: FloatArray  # of the agent after publishing
    divisible: FloatArray  # the share of learning that learners divide
    shards: int  # of a minibatch; learners beyond this number have nothing to do
    env_cpu_s: float | None = None  # of a core for a step of one lane; None: all the step's seconds
    step_deviation_s: float = 0.0  # of a step of one lane
    spread_from: str = NONE  # what the deviation was read from

    @property
    def step_s(self) -> FloatArray:
        """Seconds of a step of one lane."""
        return self.env_s * (self.measured.samplers / self.measured.round_steps)


@dataclass(frozen=True)
class Prediction:
    """The predicted seconds of a round in a setup, by the mean costs and each replicate."""

    setup: Setup  # with at least a lane for each sampler
    round_s: FloatArray  # [1 + DRAWS]
    collect_s: float  # until the slowest sampler has collected
    learn_s: float
    error: float  # the relative error of the model; 0 for the setup that was measured

    @property
    def step_s(self) -> float:
        """Seconds for each environment step."""
        return float(self.round_s[0]) / self.setup.round_steps

    @property
    def core_hours(self) -> float:
        """Core hours of a million environment steps; in lock-step, processes take turns."""
        wanted = (self.setup.busy, *self.setup.dealt[1:])
        cores = sum(min(n, self.setup.cores or n) for n in wanted)
        return cores * self.step_s * 1e6 / 3600

    def seconds(self, steps: int | None = None) -> Interval:
        """Seconds of a round, or of `steps` environment steps."""
        scale = 1.0 if steps is None else steps / self.setup.round_steps
        return _interval(scale * self.round_s, self.error)

    def speedup(self, base: Prediction) -> Interval:
        """How many times faster than `base` a step is."""
        if self.setup == base.setup:
            return Interval(1.0, 1.0, 1.0)
        scale = self.setup.round_steps / base.setup.round_steps
        return _interval(scale * base.round_s / self.round_s, math.hypot(self.error, base.error))


def _interval(values: FloatArray, error: float) -> Interval:
    """The first value with the range of its draws, widened by the error of the model."""
    value = float(values[0])
    ends = np.log(np.quantile(values[1:], [TAIL, 1 - TAIL]) / value)
    low, high = (math.hypot(float(end), math.log1p(error)) for end in (min(ends[0], 0), ends[1]))
    return Interval(value, value * math.exp(-low), value * math.exp(high))


def predict(costs: Costs, setup: Setup) -> Prediction:
    """The seconds of a round in another setup: processes, machines, cores, lag or round shape."""
    from scipy.special import ndtri

    was = costs.measured
    if setup.samplers > setup.lanes:  # more but shorter lanes, so that each sampler has one
        steps = max(1, round(setup.round_steps / setup.samplers))
        setup = replace(setup, steps=steps, lanes=setup.samplers)
    lanes, before = math.ceil(setup.lanes / setup.samplers), was.lanes / was.samplers
    longer = setup.steps / was.steps

    def for_lanes(seconds: FloatArray, call_lanes: float) -> FloatArray:
        return seconds * ((call_lanes + lanes) / (call_lanes + before))

    if costs.env_cpu_s is None:
        env_s, wait_s = longer * for_lanes(costs.env_s, ENV_CALL_LANES), np.zeros(1)
    else:
        env_s = setup.steps * lanes * np.minimum(costs.env_cpu_s, costs.step_s)
        wait_s = setup.steps * lanes * costs.step_s - env_s
    cpu_s = longer * for_lanes(costs.act_s, ACT_CALL_LANES) + env_s
    cpu_s = cpu_s + for_lanes(costs.other_s, ROLLOUT_LANES) + for_lanes(costs.send_s, 0.0)
    first, *others = setup.dealt
    cores = setup.cores or setup.busy
    # Samplers that start together queue once for their first burst of work; then they are apart.
    queue_s = (math.ceil(first / cores) - 1) * cpu_s / (setup.steps * lanes)
    collect_s = np.maximum(cpu_s + wait_s + queue_s, cpu_s * first / cores)
    rounds = math.inf if setup.max_lag is None else setup.max_lag + 1
    # The expected maximum of N normal values (Blom 1958).
    slowest = float(ndtri((setup.samplers - 0.375) / (setup.samplers + 0.25)))
    late_s = slowest * costs.step_deviation_s * math.sqrt(setup.steps * lanes)

    useful, then = min(setup.learners, costs.shards), min(was.learners, costs.shards)
    divided = (1 - costs.divisible * (1 - 1 / useful)) / (1 - costs.divisible * (1 - 1 / then))
    learn_s = costs.learn_s * divided * (setup.round_steps / was.round_steps)
    learn_s = learn_s * max(1.0, useful / cores)
    sent = sum(others) / setup.samplers * setup.round_steps * setup.step_bytes
    agent_s = costs.agent_s + SAMPLER_S * first + MACHINE_S * len(others) + sent / COPY_BYTES_S
    arrive_s = 0.0
    if others:  # a message to each other machine and back, all through the agent's link
        arrive_s = 2 * setup.latency_s + setup.exchange_s + others[0] * SAMPLER_S
        arrive_s += (sent + len(others) * POLICY_BYTES) / setup.bandwidth
    times = [(collect_s + late_s + arrive_s + learn_s + agent_s) / rounds]
    if setup.max_lag != 0:
        # While samplers collect, learners get their share of the cores, or what samplers leave.
        wanting = first * cpu_s / (cpu_s + wait_s)
        unused = cores - first * cpu_s / collect_s
        speed = np.minimum(1.0, np.maximum(cores / (useful + wanting), unused / useful))
        beside_s = np.minimum(learn_s / speed, learn_s + collect_s * (1 - speed))
        times += [
            collect_s + late_s / rounds,
            beside_s + agent_s + costs.after_s,
            (first * cpu_s + useful * learn_s + agent_s) / cores,
        ]
    lock_step = setup.max_lag == 0 and setup.busy <= cores and not others
    error = ERROR_MANY if setup.busy > 1 and cores > 2 else ERROR if lock_step else ERROR_SHARED
    same = attrgetter("steps", "lanes", "samplers", "learners", "machines", "max_lag")
    measured = same(setup) == same(was) and setup.busy <= cores
    return Prediction(
        setup=setup,
        round_s=np.maximum.reduce(np.broadcast_arrays(*times)),
        collect_s=float(collect_s[0]) + late_s / rounds,
        learn_s=float(learn_s[0]),
        error=0.0 if measured else error,
    )


def read_costs(sweep: Sweep, warmup: int, env_cpu_s: float | None = None) -> Costs:
    """The costs of the runs with the fewest processes, in lock-step if any run is.

    Raises BadInputError if the runs differ in other settings, or lack what a plan needs.
    """
    if others := [key for key in sweep.varying if key not in MAY_DIFFER]:
        raise BadInputError(
            f"a plan is for one configuration, and these runs differ in {listed(others)}: name "
            "the directory of one run, or of runs that differ in sampler.n"
        )
    rounds = read_rounds(sweep, warmup)
    order = [(r.oversubscribed, s.max_lag != 0, s.samplers, s.learners) for r, s, _ in rounds]
    chosen = [each for each, rank in zip(rounds, order, strict=True) if rank == min(order)]
    first, measured, _ = chosen[0]
    frame = pd.concat([rows for *_, rows in chosen], ignore_index=True)
    measured = replace(measured, steps=max(1, round(frame["steps"].mean() / measured.lanes)))
    env_cpu_s = SLOW_CPU_S if env_cpu_s is None and "env.step_ms" in first.config else env_cpu_s
    shards = first.config.get("learner.shards")
    variance, spread_from = _variance([run for run, *_ in chosen], frame, measured, warmup)
    rng = np.random.default_rng(0)
    picks = np.vstack([np.arange(len(frame)), rng.integers(len(frame), size=(DRAWS, len(frame)))])

    def drawn(name: str, of: Callable[..., FloatArray] = np.mean) -> FloatArray:
        return np.asarray(of(frame[name].to_numpy(float)[picks], axis=1))

    return Costs(
        measured=measured,
        iterations=len(frame),
        act_s=drawn("act_s"),
        env_s=drawn("env_step_s"),
        other_s=drawn("other_s", np.median),
        send_s=drawn("send_s", np.median),
        learn_s=drawn("learn_s"),
        agent_s=np.maximum(0.0, drawn("agent_s", np.median) - SAMPLER_S * measured.samplers),
        after_s=drawn("after_s", np.median),
        divisible=_divisible(rounds, measured, rng),
        shards=shards if isinstance(shards, int) else 1,
        env_cpu_s=env_cpu_s,
        step_deviation_s=math.sqrt(variance),
        spread_from=spread_from,
    )


def _divisible(
    rounds: list[tuple[Run, Setup, pd.DataFrame]], measured: Setup, rng: np.random.Generator
) -> FloatArray:
    """[1 + DRAWS] the share that learners divide: of runs that show it, else `DIVISIBLE`."""
    step_s: dict[int, list[float]] = {}
    for run, setup, rows in rounds:
        if replace(setup, learners=1) == replace(measured, learners=1) and not run.oversubscribed:
            mean_s = float((rows["learn_s"] / rows["steps"]).mean())
            step_s.setdefault(setup.learners, []).append(mean_s)
    alone = step_s.pop(1, [])
    if not (alone and step_s):
        return np.append(np.mean(DIVISIBLE), rng.uniform(*DIVISIBLE, DRAWS))
    shares = [(1 - s / np.mean(alone)) / (1 - 1 / n) for n, many in step_s.items() for s in many]
    return np.append(np.clip(np.mean(shares), 0, 1), np.clip(rng.choice(shares, DRAWS), 0, 1))


def read_rounds(sweep: Sweep, warmup: int) -> list[tuple[Run, Setup, pd.DataFrame]]:
    """Each run with its setup and one row per iteration.

    The rows hold `steps`, `round_s` (without evaluating), the samplers' mean `act_s`,
    `env_step_s`, `other_s` and `send_s`, their `variance`, and `learn_s`, `agent_s` and `after_s`.

    Raises BadInputError if a run lacks what a plan needs, or its samplers were on several machines.
    """
    frame = wall_clock.iterations_after_warmup(sweep, warmup)
    timing = wall_clock.timing_after_warmup(sweep, warmup)
    work = ["act_s", "env_step_s", "send_s", "other_s"]
    if not {*work, "publish_s", "evaluate_s", "log_s"} <= set(timing) or "collect_s" not in frame:
        raise BadInputError("a plan needs iterations.csv and timing.csv of the run")
    keys, is_agent = ["run", "iteration"], timing["process"].astype(str) == AGENT
    own = timing[~is_agent].assign(busy_s=timing[work].sum(axis=1)).groupby(keys, observed=True)
    agent = timing[is_agent].groupby(keys, observed=True)
    sections = agent[["publish_s", "other_s", "evaluate_s", "log_s"]].sum().add_prefix("agent_")
    whole = frame.assign(steps=wall_clock.steps_of(sweep)).set_index(keys)
    found = own[work].mean().assign(variance=own["busy_s"].var()).join(sections, how="inner")
    found = found.join(whole[["iteration_s", "collect_s", "learn_s", "steps"]], how="inner")
    found = found.dropna(subset=["act_s", "env_step_s", "learn_s"]).reset_index()
    round_s = found["iteration_s"] - found["agent_evaluate_s"]
    lock_step = {run.name: run.mode == LOCK_STEP for run in sweep.runs}
    within = round_s - found["collect_s"] - found["learn_s"]
    beside = found["agent_publish_s"] + found["agent_other_s"]
    agent_s = within.where(found["run"].astype(str).map(lock_step), beside).clip(lower=0.0)
    found = found.assign(round_s=round_s, agent_s=agent_s, after_s=found["agent_log_s"])
    rounds = [(run, _setup(run), found[found["run"] == run.name]) for run in sweep.runs]
    rounds = [each for each in rounds if len(each[2])]
    if not rounds:
        raise BadInputError("no iteration after the warm-up has its samplers' seconds: run more")
    return rounds


def _setup(run: Run) -> Setup:
    if run.config.get("sampler.name") == "ray":
        raise BadInputError(
            f"{run.name}: a plan is made from a run on one machine, and this one has sampler=ray"
        )
    lanes, lag = run.config.get("sampler.lanes"), run.config.get("sampler.max_lag", 0)
    if not isinstance(lanes, int):
        raise BadInputError(f"{run.name}: its configuration has no number of sampler.lanes")
    return Setup(
        steps=max(1, int(run.config.get("batch_size", lanes)) // lanes),
        lanes=lanes,
        samplers=int(run.config.get("sampler.n", 1)),
        learners=int(run.config.get("learner.n", 1)),
        cores=run.cores or None,
        max_lag=None if lag == "null" else int(lag),
    )


def _variance(runs: list[Run], rows: pd.DataFrame, setup: Setup, warmup: int) -> tuple[float, str]:
    """The variance of a step of one lane, and what it was read from."""
    lanes = setup.lanes / setup.samplers
    trace, squares = read_tables([run.path / "trace.csv" for run in runs]), []
    if len(trace.frame):
        steps = trace.frame.assign(file=trace.file).query("section == 'env_step'")
        seconds = (steps["end_s"] - steps["start_s"]).dropna()
        for _, mine in seconds.groupby([steps["file"], steps["process"]], observed=True):
            counted = mine.to_numpy(float)[setup.steps * warmup :]
            if counted.size > 1:
                squares.append(np.square(counted - counted.mean()) / lanes)
    if squares:
        return float(np.concatenate(squares).mean()), TRACE
    variance = rows["variance"].dropna()
    return (float(variance.mean()) / (setup.steps * lanes), ROUND) if len(variance) else (0.0, NONE)
