"""Evaluation of the policy without noise, in lanes that training does not use."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from walle.collecting.actor import Actor
from walle.envs import EnvSpec, make_lanes
from walle.nets.policies import ActingPolicy
from walle.streams import evaluation_seed
from walle.types import AnyArray, FloatArray, PolicySnapshot


class Evaluation(NamedTuple):
    """The returns and the lengths (in steps) of E episodes."""

    returns: list[float]
    lengths: list[int]


LONGEST = 10_000


class Evaluator:
    """An evaluator runs one episode in each of its lanes.

    If the environment has no limit, an episode is cut after `LONGEST` steps, because a policy that
    never fails would never end it.
    """

    def __init__(
        self,
        env: EnvSpec,
        policy: ActingPolicy,
        obs_dim: int,
        clip: float | None,
        *,
        episodes: int,
        seed: int,
    ) -> None:
        """Makes a lane for each episode; their seeds differ from those of the training lanes."""
        self._lanes = make_lanes(env, range(episodes), seed, "evaluate")
        # An environment may keep something across episodes; replayed ones do not.
        self._new = self._lanes.state() if env.saving == "pickle" else None
        self._seed = None if env.backend == "envpool" else seed  # its lanes take no new seeds
        self._longest = self._lanes.episode_limit or LONGEST
        self._actor = Actor(policy, obs_dim, episodes, clip)

    def evaluate(
        self, snapshot: PolicySnapshot, number: int, interrupted: Callable[[], bool]
    ) -> Evaluation | None:
        """Runs an episode in every lane with the likeliest actions; returns None if interrupted.

        The result depends on `snapshot` and on the evaluation's `number`, from 0, alone.
        """
        self._actor.load(snapshot)
        n, seed = len(self._lanes), self._seed
        seeds = None if seed is None else [evaluation_seed(seed, i, number) for i in range(n)]
        if self._new is not None:
            self._lanes.restore(self._new)
        obs = self._lanes.reset(seeds)
        self._actor.forget(np.ones(n, np.bool_))
        returns, lengths = np.zeros(n), np.zeros(n, np.int64)
        running = np.ones(n, np.bool_)
        while running.any() and lengths.max() < self._longest:
            if interrupted():
                return None
            step = self._lanes.step(self._likeliest(np.asarray(obs, np.float32)))
            returns += np.where(running, step.reward, 0.0)
            lengths += running
            running &= ~(step.terminated | step.truncated)
            obs = step.obs
        return Evaluation(returns.tolist(), lengths.tolist())

    @torch.inference_mode()
    def _likeliest(self, obs: FloatArray) -> AnyArray:
        policy, dist_params = self._actor.policy, self._actor.dist_params(obs)
        return policy.mode(policy.distribution(self._actor.params, dist_params)).numpy()

    def close(self) -> None:
        """Closes the lanes."""
        self._lanes.close()
