"""What an algorithm is to the rest of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from walle.algos.networks import NetSettings
from walle.algos.problem import Problem
from walle.errors import check_bounds
from walle.learning.optimizer import Optimizer
from walle.learning.replay import Replay
from walle.nets.policies import ActingPolicy
from walle.types import PolicySnapshot, Rollout

ALL_MODES = ("serial", "lock_step", "overlapped", "free")


@dataclass(kw_only=True)
class AlgorithmSettings:
    """What every algorithm can be told, and what its settings declare to the rest of the program.

    A field's bound stands with the field (`walle.errors`).
    """

    name: str

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        check_bounds(self, "algo")

    @property
    def largest_batch(self) -> int | None:
        """The environment steps that a round can grow to; None where rounds keep their size."""
        return None

    @property
    def random_steps(self) -> int:
        """Environment steps before learning begins."""
        return 0

    @property
    def shared_minibatches(self) -> dict[str, int]:
        """Settings whose rows several learners divide among themselves, and the rows."""
        return {}

    @property
    def cannot_share(self) -> str:
        """The cure, where several learners could share nothing with these settings."""
        return "use learner.n=1, and learner.threads for more cores"


class Capabilities(NamedTuple):
    """What the run has to know of an algorithm before it is made.

    Attributes:
        settings: the dataclass of its group in conf/algo/.
        modes: those of `ALL_MODES` it can learn in.
        reason: why it cannot learn in the others.
        recurrent: whether it can learn with a memory, as in net=gru.
        every_rollout: whether, free-running, a single rollout is a round.
        replay: whether it learns from a buffer of steps, with a policy of its own kind.
    """

    settings: type[AlgorithmSettings]
    modes: tuple[str, ...] = ALL_MODES
    reason: str = ""
    recurrent: bool = False
    every_rollout: bool = False
    replay: bool = False


class Algorithm(Protocol):
    """Learns from rollouts. It never sees an environment, a queue or a logger.

    Attributes:
        capabilities: what the run has to know before.
        policy_factory: makes the network that acts; picklable, so samplers make their own.
        obs_clip: bound of normalised observations; None for no bound.
        replay: its buffer, which `state_dict` leaves out; None if it has none.
    """

    capabilities: ClassVar[Capabilities]
    policy_factory: Callable[[], ActingPolicy]
    obs_clip: float | None
    replay: Replay | None

    def __init__(self, settings: Any, net: NetSettings, problem: Problem) -> None: ...

    def optimizers(self) -> Sequence[Optimizer]:
        """The optimizers that several learners can share: their losses are means over the rows."""
        ...

    def warm_up(self) -> str:
        """Compiles what is to be compiled; says in one line what was chosen, and why."""
        ...

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learns from one round of experience; returns what to log."""
        ...

    def snapshot(self) -> PolicySnapshot:
        """The policy that samplers act with from now on; the agent numbers it."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        ...
