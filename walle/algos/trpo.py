"""Trust region policy optimisation (Schulman et al. 2015), as Frans & Hafner (2016) ran it.

A round's policy step is the natural gradient, found by conjugate gradient and scaled to the KL
bound, then shortened until the measured KL keeps the bound and the surrogate improves.

Departures from the papers:
    - advantages are generalised estimates (Schulman et al. 2016) unless `advantage=monte_carlo`,
      rollouts hold parts of episodes unless `sampler.collect=episodes`, and a return that the end
      of a rollout or a time limit cuts goes on with the value function;
    - observations are normalised, and rewards scaled, by running moments;
    - if no step of the line search is good enough the policy stays as it was: Frans & Hafner's code
      took the full step whatever its search had found;
    - under lag the surrogate begins at the newest policy, and what an older one collected is
      weighted (`correction`; on_policy.corrected).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import grad_and_value

from walle.algos.adaptive_rounds import BATCH_MOST, KINDS, AdaptiveRounds
from walle.algos.base import (
    Capabilities,
    Experience,
    NetSettings,
    Normalizers,
    Problem,
    check_positive,
    values,
)
from walle.algos.baselines import (
    Baseline,
    EpisodeClock,
    FitSettings,
    LinearBaseline,
    NeuralBaseline,
)
from walle.algos.on_policy import advantages, check_choice, check_on_policy, corrected
from walle.errors import ConfigError
from walle.learning import losses
from walle.learning.compiled import attempt, choose
from walle.learning.sgd import Batch, Sgd
from walle.learning.trust_region import full_step, hessian_product, line_search
from walle.types import PolicySnapshot, Rollout


@dataclass
class TRPOSettings:
    """conf/algo/trpo.yaml, where every key is explained."""

    name: str
    gamma: float
    gae_lambda: float
    advantage: str
    baseline: str
    max_kl: float
    cg_iterations: int
    cg_damping: float
    fisher_every: int
    accept_ratio: float
    shrink: float
    tries: int
    value_epochs: int
    value_minibatch_size: int
    value_learning_rate: float
    ridge: float
    normalize_advantages: bool
    normalize_observations: bool
    normalize_rewards: bool
    obs_clip: float
    correction: str
    adapt: str
    adapt_kl: float
    adapt_steps: int
    compile: str

    def __post_init__(self) -> None:
        """Refuses what cannot work."""
        check_on_policy(self, "max_kl", "cg_iterations", "fisher_every", "tries", "ridge")
        check_choice(
            self, advantage=("gae", "monte_carlo"), baseline=("neural", "linear"), adapt=KINDS
        )
        check_positive(self, "value_epochs", "value_minibatch_size", "value_learning_rate")
        if self.baseline == "linear" and self.compile == "true":
            raise ConfigError(
                "algo.compile=true: a linear baseline takes no gradient steps that could be"
                " compiled; use algo.compile=auto or algo.baseline=neural"
            )
        if self.cg_damping < 0:
            raise ConfigError(f"algo.cg_damping={self.cg_damping} must not be negative")
        for name in ("shrink", "accept_ratio"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ConfigError(f"algo.{name}={value} must lie in [0, 1), as in 0.5")
        for name in ("adapt_kl", "adapt_steps"):
            if getattr(self, name) < 0:
                raise ConfigError(f"algo.{name}={getattr(self, name)} must not be negative")

    @property
    def largest_batch(self) -> int | None:
        """The environment steps that a round can grow to; None where it stays as it is."""
        return None if self.adapt == "none" else BATCH_MOST


class TRPO:
    """The policy is one vector; the value function is a baseline fitted after each step."""

    capabilities: ClassVar[Capabilities] = Capabilities(TRPOSettings)

    def __init__(self, settings: TRPOSettings, net: NetSettings, problem: Problem) -> None:
        """Draws the initial parameters."""
        self.settings = settings
        self.problem = problem
        self.policy_factory = net.policy_factory(problem)
        self.policy = self.policy_factory()
        self.generator = problem.generator()
        self.vector = self.policy.init(self.generator).to(problem.device)
        self.baseline = self.make_baseline(net)
        self.clock = EpisodeClock(problem.lanes)
        self.rounds = AdaptiveRounds(
            settings.adapt,
            settings.max_kl,
            problem.batch_size,
            problem.lanes,
            settings.adapt_kl,
            settings.adapt_steps,
        )
        self.normalizers = Normalizers.as_asked(settings, problem)
        self.obs_clip = self.normalizers.obs_clip
        self.lam = 1.0 if settings.advantage == "monte_carlo" else settings.gae_lambda
        self.version = 0

    def make_baseline(self, net: NetSettings) -> Baseline:
        """The value function that `algo.baseline` names."""
        s, problem = self.settings, self.problem
        if s.baseline == "linear":
            return LinearBaseline(problem.obs_dim, s.ridge, problem.device)
        fit = FitSettings(s.value_epochs, s.value_minibatch_size, s.value_learning_rate)
        return NeuralBaseline(net.critic(problem), fit, self.generator, problem.device)

    def optimizers(self) -> list[Sgd]:
        """The value function's: the policy takes one step a round."""
        return list(self.baseline.optimizers())

    def warm_up(self) -> str:
        """Compiles the value function's gradient step, if it has one."""
        s, baseline = self.settings, self.baseline
        if not isinstance(baseline, NeuralBaseline):
            return "learning eager: a linear baseline takes no gradient steps"
        minibatches = -(-self.problem.batch_size // s.value_minibatch_size)
        count = self.problem.rounds * s.value_epochs * minibatches
        choice = choose(s.compile, count, self.problem.device)
        make = partial(baseline.compile, self.problem.batch_size, self.problem.obs_dim)
        return f"value function {attempt(choice, s.compile, make)}"

    def update(self, rollout: Rollout) -> dict[str, float]:
        """One step of the policy, then the baseline is fitted; the normaliser takes the round in.

        The baseline comes second, so that advantages do not know of the returns they judge.
        """
        s = self.settings
        experience, ratio = self.normalizers.experience(rollout), None
        if s.correction != "none" and (rollout.policy_version < self.version).any():
            params = self.policy.layout.unflatten(self.vector)
            experience, ratio = corrected(self.policy, params, experience)
        ended = rollout.terminated | rollout.truncated
        t = torch.from_numpy(self.clock(ended, rollout.lane))
        batch = self.batch(experience, t.to(self.vector.device), ratio)
        metrics = self.improve_policy(batch)
        metrics["value_loss"] = self.baseline.fit(batch["obs"], batch["t"], batch["target"])
        self.normalizers.update(rollout)
        self.rounds.add(rollout)
        self.version += 1
        return {
            **metrics,
            "explained_variance": losses.explained_variance(batch["value"], batch["target"]),
        }

    @torch.no_grad()
    def batch(self, experience: Experience, t: Tensor, ratio: Tensor | None) -> Batch:
        """The round's rows; `t` ([T, L]) steps into the episode, `ratio` ([T, L]) corrects lag."""
        s, x = self.settings, experience
        times = torch.cat((t.flatten(), t[x.needs_final_obs] + 1))
        value, next_value = values(lambda obs: self.baseline(obs, times), x)
        advantage, target = advantages(
            x,
            value,
            next_value,
            s.gamma,
            self.lam,
            normalize=s.normalize_advantages,
            correction=s.correction,
            ratio=ratio,
        )
        rows = {
            "obs": x.obs,
            "t": t,
            "action": x.action,
            "log_prob": x.log_prob,
            "advantage": advantage,
            "target": target,
            "value": value,
        }
        return {name: tensor.flatten(0, 1) for name, tensor in rows.items()}

    def improve_policy(self, batch: Batch) -> dict[str, float]:
        """The natural-gradient step, with the line search's say."""
        s, max_kl = self.settings, self.rounds.max_kl
        loss, kl = partial(self.surrogate, batch), self.kl_from(batch["obs"])
        gradient, before = grad_and_value(loss)(self.vector)
        fisher = hessian_product(
            self.kl_from(batch["obs"][:: s.fisher_every]), self.vector, s.cg_damping
        )
        step, expected = full_step(gradient, fisher, max_kl=max_kl, iterations=s.cg_iterations)
        with torch.no_grad():
            found = line_search(
                loss,
                kl,
                self.vector,
                step,
                max_kl=max_kl,
                expected=expected,
                accept_ratio=s.accept_ratio,
                shrink=s.shrink,
                tries=s.tries,
            )
            dist = self.policy.dist(self.policy.layout.unflatten(found.vector), batch["obs"])
        self.vector = found.vector
        return {
            "policy_loss": found.loss,
            "improvement": float(before) - found.loss,
            "kl": found.kl,
            "max_kl": max_kl,
            "step_fraction": found.fraction,
            "entropy": float(self.policy.entropy(dist).mean()),
        }

    def surrogate(self, batch: Batch, vector: Tensor) -> Tensor:
        """-E[π(a|s) / π_old(a|s) A], over the whole round."""
        dist = self.policy.dist(self.policy.layout.unflatten(vector), batch["obs"])
        log_prob = self.policy.log_prob(dist, batch["action"])
        return losses.surrogate(log_prob, batch["log_prob"], batch["advantage"])

    def kl_from(self, obs: Tensor) -> Any:
        """The mean of KL(π_now || π_v) over observations [N, O], as a function of v."""
        with torch.no_grad():
            now = self.policy.dist(self.policy.layout.unflatten(self.vector), obs)

        def kl(vector: Tensor) -> Tensor:
            dist = self.policy.dist(self.policy.layout.unflatten(vector), obs)
            return self.policy.kl(now, dist).mean()

        return kl

    def snapshot(self) -> PolicySnapshot:
        """The policy's vector, the normaliser, and how long the next rollouts are to be."""
        snapshot = self.normalizers.snapshot(self.version, self.vector)
        return snapshot._replace(rows=self.rounds.rows)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on."""
        return {
            "vector": self.vector,
            "baseline": self.baseline.state_dict(),
            "clock": self.clock.state_dict(),
            "rounds": self.rounds.state_dict(),
            "normalizers": self.normalizers.state_dict(),
            "generator": self.generator.get_state(),
            "version": self.version,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from `state_dict()`."""
        self.vector = state["vector"].to(self.problem.device)
        self.baseline.load_state_dict(state["baseline"])
        self.clock.load_state_dict(state["clock"])
        self.rounds.load_state_dict(state["rounds"])
        self.normalizers.load_state_dict(state["normalizers"])
        self.generator.set_state(state["generator"])
        self.version = state["version"]
