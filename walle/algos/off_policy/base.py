"""The common part of the off-policy algorithms: replay buffer, limiter and blocks of updates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from walle.algos.base import Capabilities, CompilableSettings
from walle.algos.compiling import (
    NATIVE_UPDATE,
    OFF_POLICY_UPDATE,
    Compilable,
    Compiling,
    Cost,
    describe,
)
from walle.algos.off_policy.limiter import Limiter
from walle.algos.off_policy.replay_memory import check_replay_memory
from walle.algos.problem import Problem
from walle.errors import not_negative, positive, within
from walle.learning.gradient_steps import leaves, rebuild
from walle.learning.off_policy_updates import (
    Stage,
    TakesBlocks,
    Updates,
    Values,
    take_stages,
)
from walle.learning.optimizer import Divisible
from walle.learning.replay import Replay
from walle.learning.sharing.sharded_updates import ShardedUpdates
from walle.learning.sharing.team import ALONE, Team
from walle.nets.factory import NetSettings
from walle.nets.normalize import ObservationNormalizer
from walle.types import PolicySnapshot, Rollout

_AT_ONCE = 64  # the most minibatches in one draw


@dataclass(kw_only=True)
class OffPolicySettings(CompilableSettings):
    """Settings of every off-policy algorithm; its YAML explains every key."""

    gamma: float = within("[0, 1]", example=0.99)
    tau: float = within("(0, 1]", example=0.005)
    learning_rate: float = positive()
    minibatch_size: int = positive()
    buffer_size: int = positive()
    learning_starts: int = not_negative()
    updates_per_step: float = positive()

    @property
    def random_steps(self) -> int:
        """See `AlgorithmSettings`."""
        return self.learning_starts

    @property
    def shared_minibatches(self) -> dict[str, int]:
        """See `AlgorithmSettings`."""
        return {"minibatch_size": self.minibatch_size}


class Draw(NamedTuple):
    """The arguments of `OffPolicy.learn`: what N blocks of updates need.

    Attributes:
        minibatches: [N, K, B, W] rows of the replay buffer.
        noise: [N, K, M, B, A] standard normal.
    """

    minibatches: Tensor
    noise: Tensor


class DividedUpdates(TakesBlocks, Divisible, Protocol):
    """Takes blocks of updates that several learners divide."""


class OffPolicy(ABC):
    """Base of the algorithms that fill a replay buffer and take updates in proportion to its steps.

    A subclass makes the networks, and adds `stages` and `summary`; or `block`, which several
    learners cannot divide. Observations are not normalised.
    """

    capabilities: ClassVar[Capabilities]
    metrics: ClassVar[type[tuple[Any, ...]]]
    cost: ClassVar[Cost] = OFF_POLICY_UPDATE
    obs_clip: float | None = None
    state: Any

    def __init__(
        self,
        settings: Any,
        net: NetSettings,
        problem: Problem,
        state: Any,
        generator: torch.Generator,
        *,
        actions: int,
        draws: int,
        updates: int = 1,
    ) -> None:
        """Begins with an empty buffer; the networks are there already.

        Args:
            settings: settings of the algorithm.
            net: settings of the networks.
            problem: spaces and sizes of the run.
            state: before the first update: nested named tuples of tensors.
            generator: drew the initial parameters; draws minibatches and noise.
            actions: A, the entries of an action.
            draws: M, how often an update draws noise [B, A].
            updates: K, the updates in a block.
        """
        self.settings, self.obs_dim = settings, problem.obs_dim
        self.state, self.generator = state, generator
        layout = problem.obs_layout
        capacity = min(settings.buffer_size, problem.rounds * problem.batch_size)
        check_replay_memory(settings, capacity, problem, actions, drawn=_AT_ONCE)
        self.replay = Replay(capacity, problem.obs_dim, actions, problem.device, layout.dtype)
        self.limiter = Limiter(settings.updates_per_step, settings.learning_starts, updates)
        self._minibatches = (updates, settings.minibatch_size, self.replay.width)
        self._noise = (updates, draws, settings.minibatch_size, actions)
        self._device = problem.device
        self.team: Team = ALONE
        self._updates: TakesBlocks = Updates(self.block)
        self._divided: DividedUpdates | None = None
        if problem.shards > 1 and type(self).block is OffPolicy.block:
            self.divide(ShardedUpdates(self.stages(), self.summary, problem.shards))
        self._normalizer = ObservationNormalizer(layout.vector, enabled=False)
        due = int(settings.updates_per_step * (problem.total_steps - settings.learning_starts))
        rows = settings.minibatch_size
        cost = NATIVE_UPDATE if self.is_native else self.cost
        part = Compilable("learning", max(0, due), rows, self._compile, cost=cost)
        self.compiling = Compiling(
            settings.compile,
            problem.device,
            [part],
            description=describe(self, net, problem),
        )

    @property
    @abstractmethod
    def policy_vector(self) -> Tensor:
        """The parameters with which samplers act, all but the last."""

    @property
    def exploration(self) -> float:
        """The policy's last parameter: 1 while samplers act at random."""
        return float(not self.limiter.started)

    @property
    def vector(self) -> Tensor:
        """See `Learnable`; the policy follows the critics, so it stands for all parameters."""
        return self.policy_vector

    @property
    def env_steps(self) -> int:
        """See `Learnable`."""
        return self.limiter.inserted

    @env_steps.setter
    def env_steps(self, steps: int) -> None:
        self.limiter.inserted = steps

    @property
    def updates_per_block(self) -> int:
        """K, the updates in a block."""
        return self._minibatches[0]

    def stages(self) -> Sequence[Stage]:
        """The gradient steps of a block, in their order; none if a subclass overrides `block`."""
        return ()

    def summary(self, found: Sequence[Values]) -> Any:
        """The `metrics` of a block, for the values of its stages or their means."""
        raise NotImplementedError(f"{type(self).__name__} has stages, but no summary of them")

    def block(self, state: Any, minibatches: Tensor, noise: Tensor) -> tuple[Any, Any]:
        """Takes a block of K updates; pure.

        Args:
            state: the state before the block.
            minibatches: [K, B, W] rows of the replay buffer.
            noise: [K, M, B, A] standard normal; an update draws M times.

        Returns:
            The state after the block, and its `metrics`.
        """
        after, found = take_stages(self.stages(), state, minibatches, noise)
        return after, self.summary(found)

    @property
    def is_native(self) -> bool:
        """Whether `make_native` computes the same blocks; others are compiled from their code."""
        return False

    def make_native(self) -> DividedUpdates:
        """Updates in C++."""
        raise NotImplementedError(f"{type(self).__name__} has no updates in C++")

    def divide(self, updates: DividedUpdates) -> None:
        """Takes all later updates by `updates`, which several learners can divide."""
        self._updates = self._divided = updates

    def optimizers(self) -> Sequence[Divisible]:
        """The updates, if several learners can divide them."""
        return [] if self._divided is None else [self._divided]

    def join(self, team: Team) -> None:
        """Takes all later updates with `team`."""
        self.team = team
        for updates in self.optimizers():
            updates.join_team(team)

    def warm_up(self) -> str:
        """Compiles the updates if that repays it; returns one line: whether, and why.

        The other learners compile too, and all wait for each other.
        """
        line = self.compiling.run()
        self.compiling.meet(self.team)
        return line

    def _compile(self, description: str | None) -> None:
        if self.is_native:
            native = self.make_native()
            native.join_team(self.team)
            self._updates = native
            self._divided = None if self._divided is None else native
            return
        dtype = getattr(torch, self.replay.dtype)
        minibatches = torch.zeros(self._minibatches, dtype=dtype, device=self._device)
        noise = torch.zeros(self._noise, device=self._device)
        self._updates.compile(self.state, minibatches, noise, description)

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Stores the round's steps and takes the due updates; returns the metrics to log."""
        self.replay.add(rollout)
        due = self.limiter.insert(rollout.env_steps)
        return {"updates": due * self._minibatches[0], **self.improve(due)}

    def improve(self, blocks: int) -> dict[str, float]:
        """Takes `blocks` blocks of updates; returns their mean metrics, NaN for no block."""
        names = self.metrics._fields  # type: ignore[attr-defined] # a named tuple's
        found: list[Tensor] = []
        at_once = max(1, _AT_ONCE // self._minibatches[0])
        for begin in range(0, blocks, at_once):
            drawn = self._draw(min(at_once, blocks - begin))
            self.team.announce(drawn, self.env_steps)
            found += self.learn(*drawn)
        means = torch.stack(found).mean(0).tolist() if found else [math.nan] * len(names)
        return dict(zip(names, means, strict=True))

    def learn(self, minibatches: Tensor, noise: Tensor) -> list[Tensor]:
        """Takes the blocks of updates of a `Draw`; returns the metrics of each."""
        self.state, found = self._updates.run(self.state, minibatches, noise)
        return found

    def _draw(self, blocks: int) -> Draw:
        """Minibatches and noise for N blocks, from the agent's random stream."""
        per_block, size, _ = self._minibatches
        rows = self.replay.sample(blocks * per_block, size, self.generator)
        noise = torch.randn((blocks, *self._noise), generator=self.generator)
        return Draw(rows.view(blocks, *self._minibatches), noise.to(self._device))

    def snapshot(self) -> PolicySnapshot:
        """The policy's vector, and how much samplers explore."""
        exploration = np.array([self.exploration], np.float32)
        policy = self.policy_vector.detach().cpu().numpy()
        return PolicySnapshot.of([policy, exploration], *self._normalizer.frozen())

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume, without `replay`."""
        return {
            "tensors": leaves(self.state),
            "inserted": self.limiter.inserted,
            "blocks": self.limiter.blocks,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.state = rebuild(self.state, (x.to(self._device) for x in state["tensors"]))
        self.limiter.inserted, self.limiter.blocks = state["inserted"], state["blocks"]
        self.generator.set_state(state["generator"])
        self.team.changed()
