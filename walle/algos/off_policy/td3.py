"""Twin delayed deterministic policy gradient (Fujimoto, van Hoof & Meger 2018).

TD3 is DDPG with three changes: the target uses the smaller value of two critics, noise is added to
the target's action, and policy and targets move once every `policy_delay` updates of the critics.

Departures from the paper:
    - two hidden layers of 256 units and minibatches of 256, as in the authors' later code; the
      layers are normalised before ReLU, exploration noise is 0.2 instead of 0.1, and the rate of
      the targets 0.01 instead of 0.005;
    - the target's action is kept within [-1, 1] after the noise, as in the authors' code;
    - an episode that a time limit cuts is not terminal: its last step bootstraps;
    - actions are drawn uniformly from [-1, 1] for the first `learning_starts` steps, the same
      number for every task;
    - collection and updates alternate by rounds: each round's steps are followed by
      `updates_per_step` updates for every step, for any number of lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from walle.algos.base import Capabilities
from walle.algos.off_policy.base import Sample
from walle.algos.off_policy.ddpg import DDPG, DDPGSettings, DDPGState
from walle.errors import not_negative, positive
from walle.learning import losses


@dataclass(kw_only=True)
class TD3Settings(DDPGSettings):
    """Settings in conf/algo/td3.yaml, which explains every key."""

    policy_delay: int = positive()
    target_noise: float = not_negative()
    target_noise_clip: float = positive()


class TD3(DDPG):
    """TD3: DDPG with two critics, a delayed policy, and noise on the target's action."""

    capabilities: ClassVar[Capabilities] = Capabilities(TD3Settings, replay=True, asymmetric=True)
    critics, draws = 2, 1

    @property
    def smoothing(self) -> tuple[float, float]:
        """Scale and bound of the noise on the target's action."""
        return self.settings.target_noise, self.settings.target_noise_clip

    def target(self, state: DDPGState, batch: Sample) -> Tensor:
        """The target y = r + γ c min_k Q'_k(s', ã), [B]; ã is π'(s') with clipped noise."""
        x = batch.transitions
        action = losses.target_policy_smoothing(
            self.policy.act(state.policy_target, x.next_obs), batch.noise[:, 0], *self.smoothing
        )
        q = self.critic(state.critic_target, x.next_obs, action)
        return losses.td_target(x.reward, x.continues, q, self.settings.gamma)
