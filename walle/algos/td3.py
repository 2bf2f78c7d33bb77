"""Twin delayed deterministic policy gradient (Fujimoto, van Hoof & Meger 2018).

DDPG with three changes: the least of two critics in the target, noise on the target's action, and a
policy that moves, as the targets do, once in `policy_delay` updates of the critics.

Departures from the paper:
    - two hidden layers of 256 units and minibatches of 256, as in the authors' later code;
    - actions are drawn evenly from [-1, 1] for the first `learning_starts` steps, for every task
      as many;
    - collection and updates alternate by rounds: a round's updates follow its steps, as many a
      step as `updates_per_step` says, and whatever the number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from walle.algos.base import Capabilities
from walle.algos.ddpg import DDPG, DDPGSettings, DDPGState
from walle.algos.networks import NetSettings
from walle.algos.problem import Problem
from walle.errors import not_negative, positive
from walle.learning import losses
from walle.learning.replay import Transitions


@dataclass(kw_only=True)
class TD3Settings(DDPGSettings):
    """conf/algo/td3.yaml, where every key is explained."""

    policy_delay: int = positive()
    target_noise: float = not_negative()
    target_noise_clip: float = positive()


class TD3(DDPG):
    """DDPG with two critics, a delayed policy, and noise on the target's action."""

    capabilities: ClassVar[Capabilities] = Capabilities(TD3Settings, replay=True)

    def __init__(self, settings: TD3Settings, net: NetSettings, problem: Problem) -> None:
        """See `OffPolicy`."""
        delay = settings.policy_delay
        super().__init__(settings, net, problem, critics=2, draws=1, updates=delay)

    def target(self, state: DDPGState, batch: Transitions, draws: Tensor) -> Tensor:
        """The target, y = r + γ c min_k Q'_k(s', ã), where ã is π'(s') with clipped noise: [B]."""
        s = self.settings
        action = losses.target_policy_smoothing(
            self.policy.act(state.policy_target, batch.next_obs),
            draws[0],
            s.target_noise,
            s.target_noise_clip,
        )
        q = self.critic(state.critic_target, batch.next_obs, action)
        return losses.td_target(batch.reward, batch.continues, q, s.gamma)
