"""Evaluation of the policy in separate lanes, without noise and optionally also with noise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from walle.envs import EnvSpec, Lanes, make_lanes
from walle.envs.lanes import restart, unusable
from walle.errors import RolloutError
from walle.nets.policies import ActingPolicy
from walle.sampling.actor import Actor
from walle.streams import evaluation_noise, evaluation_seed, kept_globals, seed_globals
from walle.system.format import count_text
from walle.types import AnyArray, InfoColumn, PolicySnapshot, layout_of


class Evaluation(NamedTuple):
    """The returns and the lengths (in steps) of E episodes."""

    returns: list[float]  # [E] undiscounted
    lengths: list[int]  # [E]
    # the same episodes with actions that the policy drew; None if there are none
    stochastic: Evaluation | None = None
    info: Sequence[tuple[str, list[float]]] = ()  # the columns of the info: names and values, [E]

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(np.mean(self.returns))


def means(info: Iterable[tuple[str, Iterable[float]]]) -> dict[str, float | None]:
    """Cells `NAME_mean`: a column's mean over the episodes with a number; None if there is none."""
    numbers = {name: [x for x in values if x == x] for name, values in info}
    return {f"{name}_mean": float(np.mean(x)) if x else None for name, x in numbers.items()}


LONGEST = 10_000


class Evaluator:
    """Runs one episode in each of its lanes.

    If the environment has no limit, an episode is cut after `LONGEST` steps, because a policy that
    never fails would never end it.
    """

    def __init__(
        self,
        env: EnvSpec,
        policy: ActingPolicy,
        clip: float | None,
        *,
        episodes: int,
        seed: int,
        stochastic: bool = False,
    ) -> None:
        """Makes a lane for each episode; their seeds differ from those of the training lanes.

        With `stochastic`, every evaluation runs its episodes a second time with drawn actions.
        """
        seed_globals(seed, "evaluate")
        self._lanes = make_lanes(env, range(episodes), seed, "evaluate")
        # An environment may keep something across episodes, unless its state is saved by replay.
        self._new = self._lanes.state() if env.saving == "pickle" else None
        self._info = env.info
        self._seed = None if env.backend == "envpool" else seed  # EnvPool takes no new seeds
        width = layout_of(self._lanes.observation_space).width
        self._actor, self._policy = Actor(policy, width, episodes, clip), policy
        self._streams, self._stochastic = seed, stochastic

    @kept_globals()
    def evaluate(
        self, snapshot: PolicySnapshot, number: int, interrupted: Callable[[], bool]
    ) -> Evaluation | None:
        """Runs an episode in every lane with the likeliest actions; returns None if interrupted.

        The result depends only on `snapshot` and on the evaluation's `number`, from 0.
        """
        self._actor.load(snapshot)
        evaluation = self._run(number, self._actor.likeliest, interrupted)
        if evaluation is None or not self._stochastic:
            return evaluation
        lanes = range(len(self._lanes))
        noise = [evaluation_noise(self._streams, lane, number) for lane in lanes]

        def draw(obs: AnyArray) -> AnyArray:
            rows = [self._policy.noise(rng, 1) for rng in noise]
            return self._actor.draw(obs, np.concatenate(rows))

        drawn = self._run(number, draw, interrupted)
        return None if drawn is None else evaluation._replace(stochastic=drawn)

    def _run(
        self, number: int, act: Callable[[AnyArray], AnyArray], interrupted: Callable[[], bool]
    ) -> Evaluation | None:
        n, seed = len(self._lanes), self._seed
        seed_globals(self._streams, "evaluate", number)
        seeds = None if seed is None else [evaluation_seed(seed, i, number) for i in range(n)]
        if self._new is not None:
            self._lanes.restore(self._new)
        self._actor.forget(np.ones(n, np.bool_))
        return run_episodes(self._lanes, seeds, act, interrupted, self._info)

    def close(self) -> None:
        """Closes the lanes."""
        self._lanes.close()


def run_episodes(
    lanes: Lanes,
    seeds: Sequence[int] | None,
    act: Callable[[AnyArray], AnyArray],
    interrupted: Callable[[], bool] = lambda: False,
    info: Sequence[str] = (),
) -> Evaluation | None:
    """Runs an episode in every lane; returns None if interrupted.

    `seeds` is None if the lanes take no new seeds. `act` maps raw observations [L, O] to actions
    [L, *A]; `interrupted` is called before every step. Episodes end before a faulty step.
    `info` is the lanes' `EnvSpec.info`. Raises RolloutError for a return that is not finite.
    """
    n, dtype = len(lanes), layout_of(lanes.observation_space).dtype
    obs = lanes.reset(seeds)
    if lanes.failed is not None:
        restart(lanes, unusable(lanes, obs), obs)
    returns, lengths = np.zeros(n), np.zeros(n, np.int64)
    last, total = np.full((n, len(info)), np.nan), np.zeros((n, len(info)))
    running = np.ones(n, np.bool_)
    faults = 0
    while running.any() and lengths.max() < (lanes.episode_limit or LONGEST):
        if interrupted():
            return None
        if dtype != "uint8" and not np.isfinite(obs[running]).all():
            raise _not_finite("saw an observation with", obs[running])
        step = lanes.step(act(np.asarray(obs, dtype)))
        obs = step.obs
        if lanes.failed is not None:
            failed = unusable(lanes, obs, step.reward)
            faults += int((running & failed).sum())
            running &= ~failed
            restart(lanes, failed, obs)
        returns += np.where(running, step.reward, 0.0)
        lengths += running
        if step.info is not None:
            last[running] = step.info[running]
            total += np.where(running[:, None], step.info, 0)
        running &= ~(step.terminated | step.truncated)
    if not np.isfinite(returns).all():
        raise _not_finite("returned", returns)
    if faults:
        text = f"{faults} of {count_text(n, 'episode')} of an evaluation ended at a fault"
        print(f"env.on_error=reset: {text}", file=sys.stderr, flush=True)
    steps = np.maximum(lengths, 1)
    columns = zip(map(InfoColumn.of, info), last.T, total.T, strict=True)
    values = [(column.column, column.value(x, y, steps).tolist()) for column, x, y in columns]
    return Evaluation(returns.tolist(), lengths.tolist(), info=values)


def _not_finite(what: str, values: AnyArray) -> RolloutError:
    number = values[~np.isfinite(values)][0]
    return RolloutError(
        f"an episode of an evaluation {what} {number}: clip or mask it in the environment, or "
        "lower algo.learning_rate if the policy has diverged"
    )
