"""The common part of the on-policy algorithms, which learn from one round at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from walle.algos import engines
from walle.algos.base import Capabilities, CompilableSettings, Problem, copy_entries
from walle.algos.on_policy.experience import Experience, Normalizers, values
from walle.algos.on_policy.rows import make_rows
from walle.errors import ConfigError, not_negative, one_of, positive, within
from walle.learning import losses, returns
from walle.learning.adam import AdamSettings, AdamState, Learned, TrainState
from walle.learning.native.passes import Passes
from walle.learning.sharing.team import ALONE, Team, map_rows
from walle.learning.step import Divisible
from walle.nets.critics import PolicyAndCritic
from walle.nets.factory import NetSettings
from walle.nets.policies import StochasticPolicy
from walle.types import PolicySnapshot, Rollout


@dataclass(kw_only=True)
class OnPolicySettings(CompilableSettings):
    """Settings of every on-policy algorithm; its YAML explains every key."""

    gamma: float = within("[0, 1]", example=0.99)
    gae_lambda: float = within("[0, 1]", example=0.99)
    normalize_advantages: bool
    normalize_observations: bool
    normalize_rewards: bool
    reward_scale: float = positive()
    obs_clip: float = positive()
    correction: str = one_of("none", "truncated", "vtrace")
    max_staleness: int | None = not_negative()

    def __post_init__(self) -> None:
        """Checks the bounds; refuses two scales of rewards."""
        super().__post_init__()
        if self.normalize_rewards and self.reward_scale != 1:
            raise ConfigError(
                f"algo.reward_scale={self.reward_scale} with algo.normalize_rewards=true, which"
                " divides it out again; use algo.normalize_rewards=false"
            )

    @property
    def staleness_bound(self) -> int | None:
        """See `AlgorithmSettings`."""
        return self.max_staleness


_NOTHING = np.zeros(0, np.float32)


class Estimates(NamedTuple):
    """Estimates for the steps of a round, [T, L] each."""

    advantage: Tensor  # the action's value minus the state's value
    target: Tensor  # the value that the value function is fitted to
    value: Tensor  # the value function's estimate that the other two are computed from


class StepBatch(NamedTuple):
    """N rows, each a step of the round or a sequence of K steps; columns are [N] or [N, K]."""

    obs: Any  # the networks' inputs: observations [N, O], or of sequences `SequenceInputs`
    action: Tensor  # [N, *A] or [N, K, *A]
    log_prob: Tensor  # of the action under the policy before the update
    advantage: Tensor
    target: Tensor  # of the value function
    value: Tensor  # the value function's estimate before the update

    @classmethod
    def of(cls, experience: Experience, estimates: Estimates) -> StepBatch:
        """The N = T L steps of a round: flattens [T, L, ...] to [T L, ...]."""
        columns = (experience.obs, experience.action, experience.log_prob, *estimates)
        return cls(*(column.flatten(0, 1) for column in columns))


class RoundData(NamedTuple):
    """The arguments of `OnPolicy.learn`."""

    experience: Experience
    rollout: Rollout


class OnPolicy(ABC):
    """Base of the algorithms that learn from one round at a time and then drop it.

    A subclass adds its loss, `learn`, `parts`, `optimizer`, and further state.

    Attributes:
        vector: the parameters; the policy's [P] come first.
        adam: Adam's state for `vector`.
        optimizer: takes the gradient steps on `vector`: `Optimizer`, or `Passes` in C++.
        improve: the function for passes over a round with `optimizer`, see `Passes.improve`.
        gae_lambda: λ of the advantages; from the settings unless a subclass changes it.
        learned: the entries of `state_dict` with networks and normalisers, see `start_from`.
        kind: the policy's kind, see `nets.factory.PolicySpec`.
        team: the learners that take the gradient steps together.
    """

    capabilities: ClassVar[Capabilities]
    replay = None
    learned: ClassVar[tuple[str, ...]] = ("vector", "normalizers.obs", "normalizers.reward.moments")
    kind: ClassVar[str] = "stochastic"
    adam_settings = AdamSettings()
    optimizer: Any
    improve: Callable[..., Learned]

    def __init__(self, settings: Any, net: NetSettings, problem: Problem) -> None:
        """Makes the policy and draws its initial parameters."""
        self.settings, self.problem, self.net = settings, problem, net
        self.policy_factory = net.policy_factory(problem, self.kind)
        self.policy: StochasticPolicy = self.policy_factory()
        self.generator = problem.generator()
        self.normalizers = Normalizers(
            problem,
            observations=settings.normalize_observations,
            rewards=settings.normalize_rewards,
            clip=settings.obs_clip,
            gamma=settings.gamma,
            reward_scale=settings.reward_scale,
        )
        self.obs_clip = self.normalizers.obs_clip
        self.env_steps = 0
        self.team: Team = ALONE
        self.gae_lambda: float = settings.gae_lambda
        self.vector: Tensor = self.policy.init(self.generator).to(problem.device)
        self.adam = AdamState.zeros_like(self.vector)

    @property
    def policy_vector(self) -> Tensor:
        """The policy's parameters, [P]."""
        return self.vector[: self.policy.layout.size]

    @abstractmethod
    def learn(self, experience: Experience, rollout: Rollout) -> dict[str, float]:
        """Improves the policy with one round; returns the metrics to log.

        Args:
            experience: the round, normalised. If lag is to be corrected, `log_prob` is the newest
                policy's and `ratio` is set; `estimates` then corrects the advantages.
            rollout: the round before normalisation, without its observations and actions.
        """

    @abstractmethod
    def parts(self) -> Sequence[engines.Part]:
        """The parts of learning that can be compiled or run in C++."""

    def optimizers(self) -> Sequence[Divisible]:
        """The optimizers that several learners can share."""
        return [self.optimizer]

    def learn_in_cpp(self, passes: Passes) -> None:
        """Takes all later gradient steps on `vector` in C++."""
        self.optimizer, self.improve = passes, passes.improve
        passes.join_team(self.team)

    def join(self, team: Team) -> None:
        """Takes all later steps with `team`."""
        self.team = team
        for optimizer in self.optimizers():
            optimizer.join_team(team)

    def features(self, experience: Experience) -> Experience:
        """The round with the networks' features [..., F] instead of its observations."""
        return experience

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Learns from one round, then updates the normalisers; returns the metrics to log."""
        experience = self.normalizers.experience(rollout)
        if self.settings.correction != "none" and rollout.lag.any():
            experience = self.with_newest_log_probs(experience)
        rest = rollout._replace(obs=_NOTHING, final_obs=_NOTHING, action=_NOTHING)
        data = RoundData(experience, rest)
        self.team.announce(data, self.env_steps)
        metrics = self.learn(*data)
        self.normalizers.update(rollout)
        self.env_steps += rollout.env_steps
        return metrics

    def skip(self, rollout: Rollout) -> None:
        """Updates the normalisers with a rollout that is too old to learn from.

        This keeps each lane's running return, and hence the reward scale, gapless.
        """
        self.normalizers.experience(rollout)
        self.normalizers.update(rollout)

    @torch.no_grad()
    def with_newest_log_probs(self, experience: Experience) -> Experience:
        """The experience of an older policy μ with the newest policy π's log-probabilities.

        Updates then start with a ratio of 1 (Hilton et al. 2022, eq. 5). `ratio` keeps π / μ for
        the correction of the advantages.
        """
        params = self.policy.layout.unflatten(self.policy_vector)
        dist = self.policy.dist(params, self.features(experience).obs)
        log_prob = self.policy.log_prob(dist, experience.action)
        ratio = torch.exp(log_prob - experience.log_prob)
        return experience._replace(log_prob=log_prob, ratio=ratio)

    def estimates(self, experience: Experience, value_of: Callable[[Tensor], Tensor]) -> Estimates:
        """Advantages and targets of a round: GAE or V-trace, normalised or weighted on request.

        Args:
            experience: the round, with features instead of observations. If it has a `ratio`, the
                lag is corrected: advantages are weighted by min(1, ratio), after normalisation, so
                that a step of weight 0 does not change the policy.
            value_of: maps [N, F] to values [N].
        """
        s, x, ratio = self.settings, experience, experience.ratio
        value, next_value = values(value_of, experience)
        steps = x.reward, x.continues, x.ended, value, next_value
        if ratio is not None and s.correction == "vtrace":
            target, advantage = returns.vtrace(*steps, ratio, s.gamma, self.gae_lambda)
        else:
            advantage = returns.gae(*steps, s.gamma, self.gae_lambda)
            target = advantage + value
        if s.normalize_advantages:
            std = advantage.std(correction=min(1, advantage.numel() - 1))  # 0 for a single step
            advantage = (advantage - advantage.mean()) / (std + 1e-8)
        if ratio is not None and s.correction != "none":
            advantage = advantage * ratio.clamp(max=1.0)
        return Estimates(advantage, target, value)

    def warm_up(self) -> str:
        """Chooses the engine of each part; returns one line: the choices and the reasons."""
        return engines.choose(self.settings.compile, self.problem.device, self.parts(), self.team)

    def snapshot(self) -> PolicySnapshot:
        """The policy's parameters and the normaliser."""
        return self.normalizers.snapshot(self.policy_vector)

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {
            "vector": self.vector,
            "adam": self.adam.state_dict(),
            "normalizers": self.normalizers.state_dict(),
            "generator": self.generator.get_state(),
            "env_steps": self.env_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.vector = state["vector"].to(self.problem.device)
        self.adam = AdamState.restored(state["adam"], self.problem.device)
        self.normalizers.load_state_dict(state["normalizers"])
        self.generator.set_state(state["generator"])
        self.env_steps = state["env_steps"]
        self.team.changed()

    def start_from(self, state: dict[str, Any]) -> str:
        """Takes the `learned` entries of another run's `state_dict()`; returns their names."""
        self.load_state_dict(copy_entries(self.state_dict(), state, self.learned))
        kinds = [x for x in ("observations", "rewards") if getattr(self.settings, f"normalize_{x}")]
        return ", ".join(["policy", "critic", *(f"normaliser of {kind}" for kind in kinds)])


class OnPolicyActorCritic(OnPolicy):
    """Base of the algorithms whose policy and critic share one vector and one optimizer."""

    def __init__(
        self, settings: Any, net: NetSettings, problem: Problem, minibatch_size: int
    ) -> None:
        """Draws the initial parameters, the policy's before the critic's."""
        super().__init__(settings, net, problem)
        self.add_critic()
        self.adam = AdamState.zeros_like(self.vector)
        self.rows = make_rows(self.policy, net, minibatch_size)
        self.improve = self.improve_in_pytorch

    def add_critic(self) -> None:
        """Makes the critic and appends its initial parameters to the policy's."""
        self.critic = self.net.critic(self.problem)
        self.networks = PolicyAndCritic(self.policy, self.critic)
        critic = self.critic.init(self.generator).to(self.problem.device)
        self.vector = torch.cat([self.vector, critic])

    def improve_networks(
        self, experience: Experience, **passes: Any
    ) -> tuple[dict[str, float], int]:
        """Passes over the round, see `improve`; returns the metrics and the gradient steps."""
        s = self.settings
        left = schedule_factor(s.schedule, self.env_steps, self.problem.schedule_steps)
        rate = s.learning_rate * left
        passes |= {"learning_rate": rate, "generator": self.generator}
        result, value, target = self.improve(self.vector, self.adam, experience, **passes)
        self.vector, self.adam = result.vector, result.state
        variance = losses.explained_variance(value, target)
        metrics = {**result.info, "explained_variance": variance, "learning_rate": rate}
        return metrics, result.gradient_steps

    def parts(self) -> list[engines.Part]:
        """The passes over a round."""
        minibatches = -(-self.problem.batch_size // self.settings.minibatch_size)
        steps = self.problem.rounds * self.settings.epochs * minibatches
        load = self.load_native if engines.has_policy(self) else None
        return [engines.Part("learning", steps, load, self.compile)]

    @abstractmethod
    def load_native(self) -> None:
        """Takes all later passes in C++."""

    def compile(self) -> None:
        """Compiles the gradient of a minibatch."""
        example = self.batch(Experience.zeros(self.problem, self.net.state_size), self.vector)
        state = TrainState(self.vector, self.adam)
        self.optimizer.compile(state, example, self.rows.minibatch_size)

    def features(self, experience: Experience) -> Experience:
        """The round with features, of a memory or of images, instead of observations."""
        return self.rows.with_features(self.networks.split(self.vector)[0], experience)

    @torch.no_grad()
    def batch(
        self, experience: Experience, vector: Tensor, old_value: Tensor | None = None
    ) -> StepBatch:
        """The round's rows, with advantages from the critic in `vector`.

        `old_value` is the value estimate of the round's first batch; None when making that batch.
        """
        featured = self.rows.with_features(self.networks.split(vector)[0], experience)
        value_of = self.networks.value_function(vector)
        found = self.estimates(featured, lambda x: map_rows(value_of, x, self.team))
        as_rows = self.rows.as_rows
        return StepBatch(
            obs=self.rows.inputs(experience, featured),
            action=as_rows(experience.action),
            log_prob=as_rows(experience.log_prob),
            advantage=as_rows(found.advantage),
            target=as_rows(found.target),
            value=as_rows(found.value) if old_value is None else old_value,
        )

    def improve_in_pytorch(
        self,
        vector: Tensor,
        state: AdamState,
        experience: Experience,
        *,
        recompute: bool = False,
        **settings: Any,
    ) -> Learned:
        """See `Passes.improve`."""
        first = self.batch(experience, vector)
        again = partial(self.batch, experience, old_value=first.value) if recompute else None
        result = self.optimizer.minimise(vector, state, first, recompute=again, **settings)
        return Learned(result, first.value, first.target)


def schedule_factor(schedule: str, env_steps: int, total_steps: int) -> float:
    """The factor of the step size: 1 if constant, else it falls linearly to 0 at `total_steps`."""
    return 1.0 if schedule == "constant" else max(0.0, 1 - env_steps / total_steps)
