"""The common part of the off-policy algorithms: a replay buffer, and updates in blocks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from walle.algos import engines
from walle.algos.base import Capabilities, CompilableSettings, Problem, copy_entries
from walle.errors import ConfigError, not_negative, one_of, positive, within
from walle.learning import losses
from walle.learning.adam import AdamSettings, TrainState, adam_step
from walle.learning.replay import Replay, Transitions, row_width
from walle.learning.sharing.team import ALONE, Team
from walle.learning.step import Divisible, Stage, Updates, gradient_of
from walle.learning.trees import leaves, rebuild, replaced
from walle.nets.factory import NetSettings
from walle.nets.normalize import ObservationNormalizer, RewardNormalizer
from walle.system.machine import memory_bytes
from walle.types import PolicySnapshot, Rollout

_AT_ONCE = 64  # the most minibatches in one draw


@dataclass(kw_only=True)
class OffPolicySettings(CompilableSettings):
    """Settings of every off-policy algorithm; its YAML explains every key."""

    shared_minibatches: ClassVar[tuple[str, ...]] = ("minibatch_size",)
    gamma: float = within("[0, 1]", example=0.99)
    tau: float = within("(0, 1]", example=0.005)
    learning_rate: float = positive()
    schedule: str = one_of("linear", "constant", default="constant")
    adam_beta1: float = within("[0, 1)", example=0.5, default=0.9)
    minibatch_size: int = positive()
    buffer_size: int = positive()
    learning_starts: int = not_negative()
    updates_per_step: float = positive()
    normalize_rewards: bool = False

    @property
    def random_steps(self) -> int:
        """See `AlgorithmSettings`."""
        return self.learning_starts

    @property
    def updates_per_block(self) -> int:
        """K, the number of updates in a block; only whole blocks are taken.

        With `policy_delay`, a block has that many updates of the critics and one of the policy.
        """
        return int(getattr(self, "policy_delay", 1))


class Draw(NamedTuple):
    """The arguments of `OffPolicy.learn`: N blocks of K updates, each with M draws of noise."""

    minibatches: Tensor  # [N, K, B, W] rows of the replay buffer
    noise: Tensor  # [N, K, M, B, A] standard normal


class Sample(NamedTuple):
    """A minibatch of B transitions, and their noise, [B, M, A]."""

    transitions: Transitions
    noise: Tensor


class OffPolicy(ABC):
    """Base of the algorithms that use a replay buffer and take `updates_per_step` updates a step.

    A subclass makes the networks, and adds `policy_vector`, `stages`, `summary` and
    `native_updates`. Observations are not normalised.
    """

    capabilities: ClassVar[Capabilities]
    metrics: ClassVar[tuple[str, ...]]  # the names of a block's numbers
    draws: ClassVar[int] = 0  # M, how often an update draws noise [B, A]
    obs_clip: float | None = None
    state: Any  # nested named tuples of tensors
    learned: tuple[str, ...]  # the entries of `state_dict()` that another run can start from

    def __init__(
        self,
        settings: Any,
        net: NetSettings,
        problem: Problem,
        state: Any,
        generator: torch.Generator,
        actions: int,
    ) -> None:
        """Starts with an empty buffer; the networks already exist.

        `state` is the initial state, `generator` drew the initial parameters and will draw
        minibatches and noise, and an action has `actions` (A) entries.
        """
        self.settings, self.net, self.problem = settings, net, problem
        self.adam = AdamSettings(beta1=settings.adam_beta1)
        self.falls_for = math.inf  # updates until the step size is 0
        if settings.schedule == "linear":
            learning_steps = problem.schedule_steps - settings.learning_starts
            self.falls_for = max(1.0, settings.updates_per_step * learning_steps)
        self.obs_dim, self.state, self.generator = problem.obs_dim, state, generator
        layout, size = problem.obs_layout, settings.minibatch_size
        most = (problem.rounds + 1) * problem.batch_size  # free-running rounds may be longer
        capacity = min(settings.buffer_size, most)
        _check_memory(settings, capacity, problem, actions)
        self.replay = Replay(capacity, problem.obs_dim, actions, problem.device, layout.dtype)
        normalizes = settings.normalize_rewards
        self.rewards = RewardNormalizer(problem.lanes, settings.gamma, enabled=normalizes)
        self.learned = ("tensors", "rewards.moments") if normalizes else ("tensors",)
        self.env_steps = self.blocks = 0  # steps inserted, and blocks of updates taken
        updates: int = settings.updates_per_block
        self._minibatches = (updates, size, self.replay.width)
        self._noise = (updates, self.draws, size, actions)
        self.shapes = [x.shape for x in leaves(state)], self._minibatches, self._noise
        self.team: Team = ALONE
        self.updates: Any = Updates(self.stages(), self.sample, self.summary, problem.shards)
        self._normalizer = ObservationNormalizer(layout.vector, enabled=False)

    @property
    @abstractmethod
    def policy_vector(self) -> Tensor:
        """The parameters that samplers act with, without the last one, `exploration`."""

    @property
    def exploration(self) -> float:
        """The policy's last parameter: 1 while samplers act at random."""
        return float(self.env_steps < self.settings.learning_starts)

    @property
    def vector(self) -> Tensor:
        """See `Learnable`: the policy alone, which soon shows any difference between critics."""
        return self.policy_vector

    @abstractmethod
    def stages(self) -> Sequence[Stage]:
        """The gradient steps of a block on `Sample`s, in order."""

    @abstractmethod
    def summary(self, numbers: Sequence[Tensor]) -> Tensor:
        """The `metrics` of a block, computed from the numbers of its stages."""

    @abstractmethod
    def native_updates(self) -> Any:
        """The same blocks in C++, for networks that the library supports."""

    def sample(self, rows: Tensor, noise: Tensor) -> Sample:
        """The minibatch of rows [B, W] of the buffer with noise [M, B, A]."""
        return Sample(Transitions.split(rows, self.obs_dim), noise.transpose(0, 1))

    def adam_step(self, part: TrainState, grad: Tensor, updates: int = 1) -> TrainState:
        """One step of Adam along the gradient [P]; `part` takes one in every `updates` updates."""
        rate = self.settings.learning_rate
        if math.isfinite(self.falls_for):
            rate = rate * (1 - part.adam.steps * updates / self.falls_for).clamp(min=0)
        return adam_step(part, grad, rate, self.adam)[0]

    def optimizers(self) -> Sequence[Divisible]:
        """The updates, which several learners can divide."""
        return [self.updates]

    def join(self, team: Team) -> None:
        """Takes all later updates with `team`."""
        self.team = team
        self.updates.join_team(team)

    def warm_up(self) -> str:
        """Chooses the engine of the updates; returns one line: which, and why."""
        return engines.choose(self.settings.compile, self.problem.device, self.parts(), self.team)

    def parts(self) -> list[engines.Part]:
        """The updates, which can run in C++ or by `torch.compile`."""
        s, problem = self.settings, self.problem
        steps = max(0, int(s.updates_per_step * (problem.total_steps - s.learning_starts)))
        load = self._load_native if engines.has_networks(self) else None
        return [engines.Part("learning", steps, load, self._compile)]

    def _load_native(self) -> None:
        self.updates = self.native_updates()
        self.updates.join_team(self.team)

    def _compile(self) -> None:
        dtype, device = getattr(torch, self.replay.dtype), self.problem.device
        minibatches = torch.zeros(1, *self._minibatches, dtype=dtype, device=device)
        self.updates.compile(self.state, minibatches, torch.zeros(1, *self._noise, device=device))

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Stores the round's steps and takes the due updates; returns the metrics to log.

        The round's returns also count for the scale of rewards.
        """
        s, block = self.settings, self.settings.updates_per_block
        self.rewards(rollout.reward, rollout.ended, rollout.lane, rollout.begins)
        self.replay.add(rollout)
        self.env_steps += rollout.env_steps
        due = due_blocks(self.env_steps, s.updates_per_step, s.learning_starts, block) - self.blocks
        self.blocks += due
        return {"gradient_steps": due * block, **self.improve(due)}

    def improve(self, blocks: int) -> dict[str, float]:
        """Takes `blocks` blocks of updates; returns their mean metrics, NaN for no block."""
        metrics: list[Tensor] = []
        at_once = max(1, _AT_ONCE // self.settings.updates_per_block)
        for begin in range(0, blocks, at_once):
            drawn = self._draw(min(at_once, blocks - begin))
            self.team.announce(drawn, self.env_steps)
            metrics += self.learn(*drawn)
        missing = [math.nan] * len(self.metrics)
        means = torch.stack(metrics).mean(0).tolist() if metrics else missing
        return dict(zip(self.metrics, means, strict=True))

    def learn(self, minibatches: Tensor, noise: Tensor) -> list[Tensor]:
        """Takes the blocks of updates of a `Draw`; returns the metrics of each."""
        self.state, metrics = self.updates.run(self.state, minibatches, noise)
        return list(metrics)

    def _draw(self, blocks: int) -> Draw:
        """Minibatches with scaled rewards, and noise, for N blocks, from the agent's stream."""
        per_block, size, _ = self._minibatches
        rows = self.replay.sample(blocks * per_block, size, self.generator)
        if self.rewards.enabled:
            Transitions.split(rows, self.obs_dim).reward.mul_(float(self.rewards.scale))
        noise = torch.randn((blocks, *self._noise), generator=self.generator)
        return Draw(rows.view(blocks, *self._minibatches), noise.to(self.problem.device))

    def snapshot(self) -> PolicySnapshot:
        """The policy's vector, and how much samplers explore."""
        exploration = np.array([self.exploration], np.float32)
        policy = self.policy_vector.detach().cpu().numpy()
        return PolicySnapshot.of([policy, exploration], *self._normalizer.frozen())

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume, without `replay`."""
        rewards = {"rewards": self.rewards.state_dict()} if self.rewards.enabled else {}
        return {
            "tensors": leaves(self.state),
            "inserted": self.env_steps,
            "blocks": self.blocks,
            "generator": self.generator.get_state(),
            **rewards,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.state = rebuild(self.state, (x.to(self.problem.device) for x in state["tensors"]))
        self.env_steps, self.blocks = state["inserted"], state["blocks"]
        self.generator.set_state(state["generator"])
        if self.rewards.enabled:
            self.rewards.load_state_dict(state["rewards"])
        self.team.changed()

    def start_from(self, state: dict[str, Any]) -> str:
        """Takes the networks of another run's `state_dict()`; returns their names."""
        new = self.state
        self.load_state_dict(copy_entries(self.state_dict(), state, self.learned))
        taken = {k: part for k, part in self.state._asdict().items() if k != "updates"}
        for name, part in taken.items():
            taken[name] = TrainState.start(part.vector) if isinstance(part, TrainState) else part
        self.state = new._replace(**taken)
        return ", ".join(taken)


def due_blocks(env_steps: int, per_step: float, starts: int, block: int) -> int:
    """The number of due blocks: `per_step` updates for every step after the first `starts`.

    The count depends only on the environment steps so far, so every mode takes the same updates.
    Updates are taken in whole blocks; a remainder waits.
    """
    return math.floor(per_step * max(0, env_steps - starts)) // block


def _check_memory(settings: Any, capacity: int, problem: Problem, actions: int) -> None:
    """Refuses a buffer or minibatches that this machine cannot hold."""
    dtype = problem.obs_layout.dtype
    width = np.dtype(dtype).itemsize * row_width(problem.obs_dim, actions, dtype)
    for name, rows, copies in (
        ("buffer_size", capacity, 3),  # writing a checkpoint takes two more copies
        ("minibatch_size", settings.minibatch_size, _AT_ONCE),
    ):
        needed, available = copies * rows * width, memory_bytes()
        if needed > available:
            raise ConfigError(
                f"algo.{name}={getattr(settings, name)} needs {needed / 1e9:,.0f} GB, and this "
                f"machine has {available / 1e9:,.0f}; the largest that fits: "
                f"{rows * available // needed}"
            )


class ContinuousOffPolicy(OffPolicy):
    """Base of the off-policy algorithms whose policy follows the gradient of the critics.

    A subclass adds `start`, `target`, `policy_gradient`, `policy_step`, `summary` and
    `native_updates`; its state has the `TrainState`s `policy` and `critic`.
    """

    kind: ClassVar[str]  # the policy's kind, see `nets.factory.PolicySpec`
    critics: ClassVar[int] = 2  # the number of critics
    outputs: ClassVar[int] = 1  # how many numbers each critic computes: 1 for a value

    def __init__(
        self, settings: Any, net: NetSettings, problem: Problem, exploration: float = 0.0
    ) -> None:
        """Draws the initial parameters; refuses discrete actions, and bounds other than -1 and 1.

        `exploration` is the standard deviation of a deterministic policy's noise.
        """
        space = problem.action_space
        if not isinstance(space, gym.spaces.Box):
            actions, fix = f"actions {space}", "ppo"
            if isinstance(space, gym.spaces.Discrete):
                actions, fix = f"{space.n} discrete actions", "dqn or ppo"
            raise ConfigError(
                f"algo={settings.name} needs continuous actions, because its policy learns from "
                f"the gradient of Q(s, a) along a; this environment has {actions}: use algo={fix}"
            )
        if not ((space.low == -1) & (space.high == 1)).all():
            raise ConfigError(
                f"algo={settings.name} draws actions from [-1, 1], but here they run from "
                f"{space.low} to {space.high}; use env.action=rescale, with env.action_low and "
                "env.action_high where the environment has no finite bounds, or algo=ppo"
            )
        (entries,) = space.shape
        self.policy_factory = net.policy_factory(problem, self.kind, exploration)
        self.policy = self.policy_factory().policy
        self.critic = net.q_functions(problem, entries, self.critics, self.outputs)
        generator = problem.generator()
        state = self.start(*(x.to(problem.device) for x in self.draw_parameters(generator)))
        super().__init__(settings, net, problem, state, generator, entries)

    def draw_parameters(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """The initial parameters of the policy [P] and of all critics [Q]."""
        return self.policy.init(generator), self.critic.init(generator)

    @abstractmethod
    def start(self, policy: Tensor, critic: Tensor) -> Any:
        """The state before the first update, from the policy's [P] and all critics' [Q] parameters.

        It consists of nested named tuples of tensors, `policy` first.
        """

    def stages(self) -> list[Stage]:
        """Updates the critics on each minibatch, then the policy on the last one."""
        numbers = range(self.settings.updates_per_block)
        critic = [Stage(self.critic_gradient, self.critic_step, k) for k in numbers]
        return [*critic, Stage(self.policy_gradient, self.policy_step, numbers[-1])]

    @abstractmethod
    def target(self, state: Any, batch: Sample) -> Tensor:
        """The critics' target, [B]."""

    @abstractmethod
    def policy_gradient(self, state: Any, batch: Sample) -> tuple[Tensor, Tensor]:
        """The gradient of the policy's loss, [P], and the stage's numbers."""

    @abstractmethod
    def policy_step(self, state: Any, grad: Tensor, numbers: Tensor) -> tuple[Any, Tensor]:
        """Moves the policy along the gradient [P], and what moves with it."""

    def critic_gradient(self, state: Any, batch: Sample) -> tuple[Tensor, Tensor]:
        """The gradient of the critics' loss, [Q]; the loss, and the critics' mean value."""
        x, target = batch.transitions, self.target(state, batch)

        def loss(vector: Tensor) -> tuple[Tensor, list[Tensor]]:
            q = self.critic(vector, x.obs, x.action)
            return losses.critic_loss(q, target), [q.mean()]

        return gradient_of(loss, state.critic.vector)

    def critic_step(self, state: Any, grad: Tensor, numbers: Tensor) -> tuple[Any, Tensor]:
        """Moves the critics along the gradient [Q]."""
        return replaced(state, critic=self.adam_step(state.critic, grad)), numbers

    @property
    def policy_vector(self) -> Tensor:
        """The policy's parameters."""
        vector: Tensor = self.state.policy.vector
        return vector
