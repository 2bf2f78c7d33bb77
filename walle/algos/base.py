"""The interface of an algorithm: its problem, its settings, its capabilities and its methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import gymnasium as gym
import torch

from walle.algos.engines import MODES
from walle.errors import ConfigError, check_bounds, one_of
from walle.learning.replay import Replay
from walle.learning.step import Divisible
from walle.nets.factory import NetSettings
from walle.nets.policies import ActingPolicy
from walle.streams import agent_seed
from walle.types import ActionSpace, ObsLayout, PolicySnapshot, Rollout, layout_of

ALL_MODES = ("serial", "lock_step", "overlapped", "free")


class Problem(NamedTuple):
    """The spaces, sizes and seed of a run, from which an algorithm builds its parts."""

    observation_space: gym.spaces.Box  # of one lane
    action_space: ActionSpace  # of one lane
    lanes: int  # how many lanes the run has in all
    total_steps: int  # environment steps the run will take
    schedule_steps: int  # environment steps after which a falling step size is 0
    batch_size: int  # environment steps a round
    seed: int  # the run's seed
    device: str  # where the agent computes
    # steps of the longest episode; None if episodes have no limit
    longest_episode: int | None = None
    rounds_vary: bool = False  # whether rounds differ in their number of steps
    shards: int = 1  # into how many parts a minibatch is divided, see `learning.step`

    @property
    def rounds(self) -> int:
        """The number of rounds that the run will take."""
        return -(-self.total_steps // self.batch_size)

    @property
    def obs_dim(self) -> int:
        """The width of an observation, O."""
        return int(self.observation_space.shape[0])

    @property
    def obs_layout(self) -> ObsLayout:
        """The layout of an observation in a row."""
        return layout_of(self.observation_space)

    def generator(self) -> torch.Generator:
        """The agent's random stream, independent of every lane's."""
        return torch.Generator().manual_seed(agent_seed(self.seed))


@dataclass(kw_only=True)
class AlgorithmSettings:
    """Settings of an algorithm, and the properties that the rest of the program reads from them.

    The bound of each field is declared with the field (`walle.errors`).
    """

    name: str
    shared_minibatches: ClassVar[tuple[str, ...]] = ()  # minibatch sizes that learners divide

    def __post_init__(self) -> None:
        """Checks the bounds of all fields."""
        check_bounds(self, "algo")

    @property
    def largest_batch(self) -> int | None:
        """The maximum environment steps in a round; None if all rounds have the same size."""
        return None

    @property
    def random_steps(self) -> int:
        """Environment steps before learning begins."""
        return 0

    @property
    def staleness_bound(self) -> int | None:
        """The maximum age, in versions, of rollouts that are learned from; None for no bound."""
        return None


@dataclass(kw_only=True)
class CompilableSettings(AlgorithmSettings):
    """Settings of an algorithm with parts that can be compiled."""

    compile: str = one_of(*MODES)

    def __post_init__(self) -> None:
        """Checks the bounds of all fields."""
        self.compile = str(self.compile).lower()  # YAML's true and false are not strings
        super().__post_init__()


class Capabilities(NamedTuple):
    """Facts about an algorithm that the run needs before it creates the algorithm.

    Attributes:
        settings: the dataclass that holds the algorithm's settings.
        modes: the members of `ALL_MODES` in which it can learn.
        reason: why it cannot learn in the other modes.
        recurrent: whether it can learn with a memory (net=gru).
        every_rollout: whether a single rollout makes a round in free-running mode.
        replay: whether it learns from a replay buffer; its policy then excludes net.scale=state.
        images: whether it can learn from images (net=cnn).
        asymmetric: whether policy and critics can see different keys (`env.critic_keys`).
    """

    settings: type[AlgorithmSettings]
    modes: tuple[str, ...] = ALL_MODES
    reason: str = ""
    recurrent: bool = False
    every_rollout: bool = False
    replay: bool = False
    images: bool = False
    asymmetric: bool = False


def check_discrete(name: str, space: ActionSpace) -> None:
    """Refuses actions that are not discrete, for the algorithm `name`, which has action values."""
    if not isinstance(space, gym.spaces.Discrete):
        fix = "sac or ppo" if isinstance(space, gym.spaces.Box) else "ppo"
        raise ConfigError(
            f"algo={name} needs Discrete actions, because it compares the values of all of them; "
            f"this environment has actions {space}: use algo={fix}"
        )


def copy_entries(into: dict[str, Any], state: dict[str, Any], paths: Sequence[str]) -> Any:
    """Copies the entries at dotted `paths` between nested mappings; returns `into`."""
    for path in paths:
        *groups, name = path.split(".")
        target, source = into, state
        for group in groups:
            target, source = target.setdefault(group, {}), source[group]
        target[name] = source[name]
    return into


class Algorithm(Protocol):
    """Learns from rollouts; never sees an environment, a queue or a logger.

    Attributes:
        capabilities: facts that the run needs before creating the algorithm.
        policy_factory: makes the network that acts; picklable, because each sampler makes one.
        obs_clip: bound of normalised observations; None for no bound.
        replay: the replay buffer, which `state_dict` leaves out; None without one.
    """

    capabilities: ClassVar[Capabilities]
    policy_factory: Callable[[], ActingPolicy]
    obs_clip: float | None
    replay: Replay | None

    def __init__(self, settings: Any, net: NetSettings, problem: Problem) -> None: ...

    def optimizers(self) -> Sequence[Divisible]:
        """The optimizers whose steps several learners can divide.

        Their losses are means over the rows; an algorithm with such an optimizer is a
        `learning.sharing.learners.Learnable`.
        """
        ...

    def warm_up(self) -> str:
        """Chooses eager PyTorch, torch.compile or C++; returns one line: which, and why."""
        ...

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learns from one round of experience; returns the metrics to log."""
        ...

    def skip(self, rollout: Rollout) -> None:
        """Takes note of a rollout that is too old to learn from.

        It is called before the `update` that would have learned from the rollout, and only if the
        settings have a `staleness_bound`.
        """
        ...

    def snapshot(self) -> PolicySnapshot:
        """The newest policy for the samplers; the agent gives it a version."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        ...
