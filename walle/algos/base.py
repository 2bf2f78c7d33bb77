"""What every algorithm is to the agent, and what the on-policy ones share by calling it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from walle.errors import ConfigError
from walle.learning.sgd import Sgd
from walle.nets.critics import Critic
from walle.nets.mlp import activation
from walle.nets.normalize import ObservationNormalizer, RewardNormalizer, apply_normalizer
from walle.nets.policies import (
    ActingPolicy,
    CategoricalPolicy,
    GaussianPolicy,
    Policy,
    StateScalePolicy,
)
from walle.nets.recurrent import GRUPolicy
from walle.streams import agent_seed
from walle.types import PolicySnapshot, Rollout

ALL_MODES = ("serial", "lock_step", "overlapped", "free")


class Problem(NamedTuple):
    """What an algorithm is told of the run it learns in.

    Attributes:
        observation_space: of one lane.
        action_space: of one lane.
        lanes: how many lanes the run has in all.
        total_steps: environment steps the run will take.
        batch_size: environment steps a round.
        seed: the run's seed.
        device: where the agent computes.
        longest_episode: of steps, where episodes have a limit; else None.
        rounds_vary: whether rounds differ in their number of steps.
    """

    observation_space: gym.spaces.Box
    action_space: gym.spaces.Box | gym.spaces.Discrete
    lanes: int
    total_steps: int
    batch_size: int
    seed: int
    device: str
    longest_episode: int | None = None
    rounds_vary: bool = False

    @property
    def rounds(self) -> int:
        """How many rounds the run will take."""
        return -(-self.total_steps // self.batch_size)

    @property
    def obs_dim(self) -> int:
        """O."""
        return int(self.observation_space.shape[0])

    def generator(self) -> torch.Generator:
        """The agent's random stream, independent of every lane's."""
        return torch.Generator().manual_seed(agent_seed(self.seed))


class Memory(NamedTuple):
    """A network's memory: its units, and the steps of the sequences it learns from."""

    units: int
    sequence: int


class NetSettings(NamedTuple):
    """The `net` group.

    Attributes:
        policy_hidden: widths of the policy's hidden layers.
        critic_hidden: widths of the critic's.
        activation: between the layers.
        log_std: where a Gaussian's log standard deviation starts.
        memory: that policy and critic read, if any.
        scale: a Gaussian's standard deviation is a parameter ("constant") or depends on the state.
    """

    policy_hidden: tuple[int, ...]
    critic_hidden: tuple[int, ...]
    activation: str
    log_std: float
    memory: Memory | None = None
    scale: str = "constant"

    def features(self, problem: Problem) -> int:
        """How wide is what policy and critic see: the memory's state, or the observation."""
        return self.state_size or problem.obs_dim

    @property
    def state_size(self) -> int:
        """S, the width of the memory; 0 without one."""
        return 0 if self.memory is None else self.memory.units

    def policy_factory(self, problem: Problem) -> Callable[[], Policy]:
        """Makes the policy for the problem's actions; picklable, so samplers make their own."""
        readout = self._readout_factory(problem)
        if self.memory is None:
            return readout
        return partial(GRUPolicy, problem.obs_dim, self.memory.units, readout)

    def _readout_factory(self, problem: Problem) -> Callable[[], Policy]:
        act, width = activation(self.activation), self.features(problem)
        if isinstance(problem.action_space, gym.spaces.Discrete):
            if self.scale == "state":
                raise ConfigError(
                    "net.scale=state with discrete actions, which have no scale; "
                    "use net.scale=constant"
                )
            actions = int(problem.action_space.n)
            return partial(CategoricalPolicy, width, actions, self.policy_hidden, act)
        size = int(problem.action_space.shape[0])
        policy = StateScalePolicy if self.scale == "state" else GaussianPolicy
        return partial(policy, width, size, self.policy_hidden, act, self.log_std)

    def critic(self, problem: Problem) -> Critic:
        """Makes the state-value function."""
        return Critic(self.features(problem), self.critic_hidden, activation(self.activation))


class Capabilities(NamedTuple):
    """What the run has to know of an algorithm before it is made.

    Attributes:
        settings: the dataclass of its group in conf/algo/.
        modes: those of `ALL_MODES` it can learn in.
        reason: why it cannot learn in the others.
        recurrent: whether it can learn with a memory, as in net=gru.
        every_rollout: whether, free-running, a single rollout is a round.
    """

    settings: type
    modes: tuple[str, ...] = ALL_MODES
    reason: str = ""
    recurrent: bool = False
    every_rollout: bool = False


class Algorithm(Protocol):
    """Learns from rollouts. It never sees an environment, a queue or a logger."""

    capabilities: ClassVar[Capabilities]
    policy_factory: Callable[[], ActingPolicy]
    obs_clip: float | None

    def __init__(self, settings: Any, net: NetSettings, problem: Problem) -> None: ...

    def optimizers(self) -> Sequence[Sgd]:
        """Those that several learners can share: their losses are means over the rows."""
        ...

    def warm_up(self) -> str:
        """Compiles what is to be compiled; says in one line what was chosen, and why."""
        ...

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learns from one round of experience; returns what to log."""
        ...

    def snapshot(self) -> PolicySnapshot:
        """What the samplers act with from now on."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        ...


def warm_up(algorithm: Algorithm) -> str:
    """Has it compile, and waits until the other learners, if there are any, have done so too."""
    told = algorithm.warm_up()
    for optimizer in algorithm.optimizers():
        optimizer.meet()
    return told


class Experience(NamedTuple):
    """A rollout as tensors, normalised and ready to learn from.

    A step's true successor is the next step's observation, except where an episode ended and
    after the last step: only those M are observations that the policy never saw.

    Attributes:
        states: [T L + M, O] normalised: every observation, then the successors just named.
        needs_final_obs: [T, L] where those M belong.
        action: [T, L, *A].
        reward: [T, L] scaled.
        continues: [T, L] 0 after a terminal state, else 1.
        ended: [T, L] an episode ended here, whichever way.
        log_prob: [T, L] under the policy that acted.
        state: [L, S] the policy's memory before the first step.
    """

    states: Tensor
    needs_final_obs: Tensor
    action: Tensor
    reward: Tensor
    continues: Tensor
    ended: Tensor
    log_prob: Tensor
    state: Tensor

    @property
    def obs(self) -> Tensor:
        """[T, L, O] normalised observations."""
        return self.states[: self.ended.numel()].view(*self.ended.shape, -1)

    @property
    def began(self) -> Tensor:
        """[T, L] an episode begins here; not at the first step, whose `state` tells."""
        return torch.cat((torch.zeros_like(self.ended[:1]), self.ended[:-1]))

    @classmethod
    def zeros(cls, problem: Problem, state_size: int = 0) -> Experience:
        """What a round looks like; `state_size` is S."""
        T, L = problem.batch_size // problem.lanes, problem.lanes
        space = problem.action_space
        dtype = torch.int64 if isinstance(space, gym.spaces.Discrete) else torch.float32
        zero = torch.zeros(T, L, device=problem.device)
        return cls(
            states=torch.zeros((T + 1) * L, problem.obs_dim, device=problem.device),
            needs_final_obs=torch.arange(T, device=problem.device).unsqueeze(1).expand(T, L)
            == T - 1,
            action=torch.zeros((T, L, *(space.shape or ())), dtype=dtype, device=problem.device),
            reward=zero,
            continues=zero,
            ended=zero.bool(),
            log_prob=zero,
            state=torch.zeros(L, state_size, device=problem.device),
        )


class Normalizers:
    """The run's two normalisers. What learning sees is what the samplers saw."""

    def __init__(
        self, problem: Problem, *, observations: bool, rewards: bool, clip: float, gamma: float
    ) -> None:
        """`observations` and `rewards` switch them on; `clip` bounds normalised observations."""
        self.obs_clip = clip if observations else None
        self._observations = ObservationNormalizer(problem.obs_dim, enabled=observations)
        self._rewards = RewardNormalizer(problem.lanes, gamma, enabled=rewards)
        self._device = problem.device

    @classmethod
    def as_asked(cls, settings: Any, problem: Problem) -> Normalizers:
        """As an on-policy algorithm's settings say."""
        return cls(
            problem,
            observations=settings.normalize_observations,
            rewards=settings.normalize_rewards,
            clip=settings.obs_clip,
            gamma=settings.gamma,
        )

    def experience(self, rollout: Rollout) -> Experience:
        """Normalises with the observation moments as the samplers had them."""
        ended = rollout.terminated | rollout.truncated
        mean, inv_std = (torch.from_numpy(x) for x in self._observations.frozen())
        needs_final_obs = ended.copy()
        needs_final_obs[-1] = True
        obs = rollout.obs[:-1].reshape(ended.size, -1)
        raw = torch.from_numpy(np.concatenate((obs, rollout.successors()[needs_final_obs])))

        def tensor(x: Any) -> Tensor:
            return torch.from_numpy(x).to(self._device)

        return Experience(
            states=apply_normalizer(raw, mean, inv_std, self.obs_clip).to(self._device),
            needs_final_obs=tensor(needs_final_obs),
            action=tensor(rollout.action),
            reward=self._rewards(rollout.reward, ended, rollout.lane).to(self._device),
            continues=1 - tensor(rollout.terminated).float(),
            ended=tensor(ended),
            log_prob=tensor(rollout.log_prob),
            state=tensor(rollout.state),
        )

    def update(self, rollout: Rollout) -> None:
        """Takes the round's raw observations in, once the round has been learned from."""
        self._observations.update(rollout.obs[:-1])

    def snapshot(self, version: int, policy: Tensor) -> PolicySnapshot:
        """The policy's parameters [P] and the normaliser, frozen, in one vector."""
        parts = (policy.detach().cpu().numpy(), *self._observations.frozen())
        return PolicySnapshot(version, np.concatenate(parts, dtype=np.float32))

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {"obs": self._observations.state_dict(), "reward": self._rewards.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        self._observations.load_state_dict(state["obs"])
        self._rewards.load_state_dict(state["reward"])


def values(value_of: Callable[[Tensor], Tensor], experience: Experience) -> tuple[Tensor, Tensor]:
    """V at every step and at its true successor, [T, L] each; `value_of` maps [N, O] to [N]."""
    x = experience
    found = value_of(x.states)
    value = found[: x.ended.numel()].view(x.ended.shape)
    next_value = value.roll(-1, 0)
    next_value[x.needs_final_obs] = found[x.ended.numel() :]
    return value, next_value


def check_positive(settings: Any, *names: str) -> None:
    """Refuses what is not positive; None means that the setting is off.

    Raises:
        ConfigError: the first that does not hold.
    """
    for name in names:
        value = getattr(settings, name)
        if value is not None and value <= 0:
            raise ConfigError(f"algo.{name}={value} must be positive")
