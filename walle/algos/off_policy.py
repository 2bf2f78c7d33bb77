"""What the off-policy algorithms share: buffer, limiter, blocks of updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from walle.algos.base import NetSettings, Problem, check_positive
from walle.errors import ConfigError
from walle.learning.compiled import MODES, attempt, choose
from walle.learning.off_policy_updates import Block, Updates, packed, unpacked
from walle.learning.replay import Replay, row_width
from walle.learning.sgd import Sgd
from walle.machine import memory_bytes
from walle.nets.bounded_policies import RandomFirst
from walle.nets.critics import QFunctions
from walle.nets.mlp import activation
from walle.nets.normalize import ObservationNormalizer
from walle.nets.policies import ActingPolicy
from walle.types import PolicySnapshot, Rollout

# Compiling a block from nothing takes 20 to 30 s of a core and saves about 6 ms an update.
REPAID_AFTER = 10_000
_GATHERED = 64  # minibatches that are drawn at once, at most


@dataclass
class OffPolicySettings:
    """What every off-policy algorithm can be told; explained in each one's YAML."""

    name: str
    gamma: float
    tau: float
    learning_rate: float
    minibatch_size: int
    buffer_size: int
    learning_starts: int
    updates_per_step: float
    compile: str

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        check_positive(self, "learning_rate", "minibatch_size", "buffer_size", "updates_per_step")
        if not 0 <= self.gamma <= 1:
            raise ConfigError(f"algo.gamma={self.gamma} must lie in [0, 1], as in 0.99")
        if not 0 < self.tau <= 1:
            raise ConfigError(f"algo.tau={self.tau} must lie in (0, 1], as in 0.005")
        if self.learning_starts < 0:
            raise ConfigError(f"algo.learning_starts={self.learning_starts} must not be negative")
        self.compile = str(self.compile).lower()  # YAML's true and false are not strings
        if self.compile not in MODES:
            raise ConfigError(f"algo.compile={self.compile!r} must be 'auto', 'true' or 'false'")


class Limiter:
    """Ties updates to collection: `per_step` updates for every environment step after `starts`.

    What is owed depends on the steps inserted so far and on nothing else, so that every mode takes
    the same updates. Blocks are never split; what does not fill one is carried.
    """

    def __init__(self, per_step: float, starts: int, block: int) -> None:
        """`block` updates are taken at once."""
        self._per_step, self._starts, self._block = per_step, starts, block
        self.inserted = 0
        self.blocks = 0

    @property
    def started(self) -> bool:
        """Whether enough was inserted for learning to begin."""
        return self.inserted >= self._starts

    def insert(self, steps: int) -> int:
        """Takes note of `steps` more; returns the blocks that are now due."""
        self.inserted += steps
        owed = math.floor(self._per_step * max(0, self.inserted - self._starts))
        due = owed // self._block - self.blocks
        self.blocks += due
        return due


def continuous_actions(name: str, problem: Problem) -> int:
    """A, where every action entry runs from -1 to 1.

    Raises:
        ConfigError: it does not, or actions are discrete.
    """
    space = problem.action_space
    if isinstance(space, gym.spaces.Discrete):
        raise ConfigError(
            f"algo={name} needs continuous actions, for its policy learns through the gradient of "
            f"Q(s, a) along a; this environment has {space.n} discrete ones: use algo=ppo"
        )
    if not ((space.low == -1) & (space.high == 1)).all():
        raise ConfigError(
            f"algo={name} draws actions from [-1, 1], but here they run from {space.low} to "
            f"{space.high}; use env.action=rescale, which needs finite bounds, or algo=ppo"
        )
    return int(space.shape[0])


def check_exploration(std: float) -> None:
    """Refuses a deterministic policy that never tries anything.

    Raises:
        ConfigError: `std` is not positive.
    """
    if std <= 0:
        raise ConfigError(
            f"algo.exploration={std} must be positive: without noise on its actions a "
            "deterministic policy tries nothing new; Fujimoto et al. used 0.1"
        )


def check_room(settings: OffPolicySettings, capacity: int, obs_dim: int, action_dim: int) -> None:
    """Refuses a buffer or minibatches that this machine cannot hold.

    Raises:
        ConfigError: memory would run out, at the latest when the buffer is full.
    """
    for name, rows, copies in (
        ("buffer_size", capacity, 3),  # two more while a checkpoint is written
        ("minibatch_size", settings.minibatch_size, _GATHERED),
    ):
        needed, there = copies * 4 * rows * row_width(obs_dim, action_dim), memory_bytes()
        if needed > there:
            raise ConfigError(
                f"algo.{name}={getattr(settings, name)} needs {needed / 1e9:,.0f} GB, and this "
                f"machine has {there / 1e9:,.0f}; the largest that fits: {rows * there // needed}"
            )


def q_functions(net: NetSettings, problem: Problem, action_dim: int, count: int) -> QFunctions:
    """`count` critics as the `net` group says."""
    act = activation(net.activation)
    return QFunctions(problem.obs_dim, action_dim, net.critic_hidden, act, count)


def random_first(make: Callable[[], ActingPolicy], action_dim: int) -> Callable[[], RandomFirst]:
    """A factory of `make`'s policy that begins with random actions; picklable as `make` is."""
    return partial(_random_first, make, action_dim)


def _random_first(make: Callable[[], ActingPolicy], action_dim: int) -> RandomFirst:
    return RandomFirst(make(), action_dim)


class OffPolicy:
    """An off-policy learner but for its update: fills the buffer, and takes the updates owed."""

    def __init__(
        self,
        settings: OffPolicySettings,
        problem: Problem,
        generator: torch.Generator,
        state: Any,
        block: Block[Any],
        *,
        updates: int = 1,
        draws: int,
        info: tuple[str, ...],
    ) -> None:
        """Begins with an empty buffer.

        Args:
            settings: the algorithm's.
            problem: the run's.
            generator: draws the minibatches and the noise; on the CPU.
            state: nested named tuples of tensors, all that learning changes.
            block: takes the updates.
            updates: in a block.
            draws: of noise [B, A] an update needs.
            info: names of the block's row of information.
        """
        self.state = state
        self.version = 0
        self.generator = generator
        capacity = min(settings.buffer_size, problem.rounds * problem.batch_size)
        action_dim = int((problem.action_space.shape or ())[0])
        check_room(settings, capacity, problem.obs_dim, action_dim)
        self.replay = Replay(capacity, problem.obs_dim, action_dim, problem.device)
        self.limiter = Limiter(settings.updates_per_step, settings.learning_starts, updates)
        self._rows = (updates, settings.minibatch_size, self.replay.width)
        self._noise = (updates, draws, settings.minibatch_size, action_dim)
        self._info = info
        self._device = problem.device
        self._updates = Updates(block)
        self._normalizer = ObservationNormalizer(problem.obs_dim, enabled=False)
        self._mode = settings.compile
        owed = int(settings.updates_per_step * (problem.total_steps - settings.learning_starts))
        self._choice = choose(settings.compile, max(0, owed), problem.device, REPAID_AFTER)

    def warm_up(self) -> str:
        """Compiles the block of updates, if that pays."""
        rows, noise = (torch.zeros(s, device=self._device) for s in (self._rows, self._noise))
        compile_all = partial(self._updates.compile, self.state, rows, noise)
        self._choice = attempt(self._choice, self._mode, compile_all)
        return f"learning {self._choice}"

    def learn(self, rollout: Rollout) -> dict[str, float]:
        """Takes in a round of experience, and the updates it makes due; returns what to log."""
        self.replay.add(rollout)
        due = self.limiter.insert(rollout.steps)
        found = self.improve(due)
        self.version += 1
        return {"updates": due * self._rows[0], **found}

    def improve(self, blocks: int) -> dict[str, float]:
        """Takes blocks of updates; returns the means of what they tell, NaN without any."""
        found: list[Tensor] = []
        at_once = max(1, _GATHERED // self._rows[0])
        for begin in range(0, blocks, at_once):
            rows, noise = self._drawn(min(at_once, blocks - begin))
            self.state, more = self._updates.run(self.state, rows, noise)
            found += more
        means = torch.stack(found).mean(0).tolist() if found else [math.nan] * len(self._info)
        return dict(zip(self._info, means, strict=True))

    def _drawn(self, blocks: int) -> tuple[Tensor, Tensor]:
        """Minibatches [N, K, B, W] and noise [N, K, M, B, A] of as many blocks."""
        per_block, size, _ = self._rows
        rows = self.replay.sample(blocks * per_block, size, self.generator)
        noise = torch.randn((blocks, *self._noise), generator=self.generator)
        return rows.view(blocks, *self._rows), noise.to(self._device)

    def snapshot(self, policy: Tensor) -> PolicySnapshot:
        """The policy's parameters [P], whether to act at random, and a normaliser that is none."""
        random = np.array([not self.limiter.started], np.float32)
        parts = (policy.detach().cpu().numpy(), random, *self._normalizer.frozen())
        return PolicySnapshot(self.version, np.concatenate(parts, dtype=np.float32))

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on, the buffer too."""
        return {
            "tensors": unpacked(self.state),
            "replay": self.replay.state_dict(),
            "inserted": self.limiter.inserted,
            "blocks": self.limiter.blocks,
            "generator": self.generator.get_state(),
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`; without a buffer in it, from an empty one."""
        self.state = packed(self.state, (x.to(self._device) for x in state["tensors"]))
        if "replay" in state:
            self.replay.load_state_dict(state["replay"])
        self.limiter.inserted, self.limiter.blocks = state["inserted"], state["blocks"]
        self.generator.set_state(state["generator"])
        self.version = state["version"]


class OffPolicyAlgorithm:
    """What an off-policy algorithm is to the agent, once it has a `learner`.

    The learner's state names the `policy` that acts. Observations are not normalised.
    """

    obs_clip: float | None = None
    learner: OffPolicy

    def optimizers(self) -> list[Sgd]:
        """None that several learners could share."""
        return []

    def warm_up(self) -> str:
        """Compiles the update."""
        return self.learner.warm_up()

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Keeps the round's steps and takes the updates they make due."""
        return self.learner.learn(rollout)

    def snapshot(self) -> PolicySnapshot:
        """The policy's vector, and whether to act at random."""
        return self.learner.snapshot(self.learner.state.policy.vector)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        self.learner.load_state_dict(state)
