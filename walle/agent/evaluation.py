"""Evaluation: the policy without its noise, on environments and seeds of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from walle.collecting.actor import Actor
from walle.envs import EnvSpec, make_lanes
from walle.nets.policies import ActingPolicy
from walle.types import AnyArray, FloatArray, PolicySnapshot


class Evaluation(NamedTuple):
    """Returns and lengths (steps) of the episodes, [E] each."""

    returns: list[float]
    lengths: list[int]


LONGEST = 10_000


class Evaluator:
    """Runs one episode in each of its lanes.

    Episodes of environments without a limit of their own are cut after `LONGEST` steps: a policy
    that never fails would otherwise be evaluated for ever.
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
        """One lane an episode; their seeds are disjoint from the training lanes'."""
        self._lanes = make_lanes(env, range(episodes), seed, "evaluate")
        self._longest = self._lanes.episode_limit or LONGEST
        self._actor = Actor(policy, obs_dim, episodes, clip)

    def evaluate(
        self, snapshot: PolicySnapshot, interrupted: Callable[[], bool]
    ) -> Evaluation | None:
        """One episode in every lane, the likeliest action at every step; None if interrupted."""
        self._actor.load(snapshot)
        obs = self._lanes.reset()
        n = len(self._lanes)
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
