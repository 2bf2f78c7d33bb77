import numpy as np
import torch

from tests.algos.on_policy.test_ppo import stale, trained
from walle.algos.on_policy import experience
from walle.algos.on_policy.base import schedule_factor
from walle.learning import returns

GAMMA = 0.9


def test_the_learning_rate_falls_linearly_to_zero():
    small = ("env=cartpole", "batch_size=256", "sampler.lanes=8", "algo.epochs=1")
    algorithm, rollout = trained(2, *small, "total_steps=1024", "algo.learning_rate=0.4")
    assert algorithm.update(rollout)["learning_rate"] == 0.2
    factors = [schedule_factor("linear", steps, 1024) for steps in (0, 768, 1024, 1280)]
    assert factors == [1, 0.25, 0, 0]
    assert schedule_factor("constant", 768, 1024) == 1


def test_experience_of_an_older_policy_is_corrected():
    """The update's ratio starts at one again; what is left is new / acting."""
    algorithm, rollout = trained(2, "env=hopper", "batch_size=256", "sampler.lanes=8")
    x = algorithm.normalizers.experience(rollout)
    acting = x.log_prob + torch.linspace(-0.5, 0.5, x.log_prob.numel()).view_as(x.log_prob)
    found = algorithm.with_newest_log_probs(x._replace(log_prob=acting))
    torch.testing.assert_close(found.log_prob, x.log_prob, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.ratio, (x.log_prob - acting).exp(), atol=1e-5, rtol=0)


def test_a_skipped_rollout_changes_the_normalisers_as_a_round_does_and_nothing_else():
    small = ("env=hopper", "batch_size=64", "sampler.lanes=8", "algo.compile=false")
    learned, rollout = trained(0, *small)
    skipped, _ = trained(0, *small)
    before = skipped.vector.clone()
    learned.update(rollout)
    skipped.skip(rollout)
    for mine, theirs in zip(
        leaves(skipped.normalizers.state_dict()),
        leaves(learned.normalizers.state_dict()),
        strict=True,
    ):
        assert np.array_equal(mine, theirs)
    assert torch.equal(skipped.vector, before)
    assert skipped.env_steps == 0


def leaves(state):
    """All values of nested dictionaries."""
    for value in state.values():
        if isinstance(value, dict):
            yield from leaves(value)
        else:
            yield value


def test_each_correction_weighs_advantages_as_it_says():
    small = ("env=hopper", "batch_size=64", "sampler.lanes=8")
    algorithm, rollout = trained(0, *small, "algo.gamma=0.9", "algo.gae_lambda=0.8")
    ratio = torch.linspace(0.5, 1.5, 64).view(8, 8)
    x = algorithm.normalizers.experience(rollout)._replace(ratio=ratio)

    def value_of(obs):
        return obs.sum(1)

    def estimates(correction):
        algorithm.settings.correction = correction
        return algorithm.estimates(x, value_of)

    plain, target, _ = estimates("none")
    truncated, same_target, _ = estimates("truncated")
    torch.testing.assert_close(truncated, plain * ratio.clamp(max=1))
    torch.testing.assert_close(same_target, target)
    weighted, other_target, _ = estimates("vtrace")
    assert (other_target - target).abs().max() > 0.01
    steps = x.reward, x.continues, x.ended, *experience.values(value_of, x)
    expected, advantage = returns.vtrace(*steps, ratio, 0.9, 0.8)
    torch.testing.assert_close(other_target, expected)
    torch.testing.assert_close(weighted, advantage * ratio.clamp(max=1))
    algorithm.settings.normalize_advantages = True
    x = x._replace(ratio=ratio.index_fill(0, torch.tensor([0]), 0.0))
    normalized, _, _ = estimates("vtrace")
    assert (normalized[0] == 0).all()  # a weight of 0: the step does not push the policy
    assert (normalized[1:] != 0).all()


def test_a_normalised_advantage_of_weight_zero_pushes_nothing():
    small = ("env=hopper", "batch_size=64", "sampler.lanes=8", "algo.normalize_advantages=true")
    algorithm, rollout = trained(0, *small)
    ratio = torch.linspace(0.5, 1.5, 64).view(8, 8)
    ratio[2:4] = 0.0
    x = algorithm.normalizers.experience(rollout)
    for correction in ("truncated", "vtrace"):
        algorithm.settings.correction = correction
        weighted = algorithm.estimates(x._replace(ratio=ratio), lambda obs: obs.sum(1)).advantage
        assert (weighted[2:4] == 0).all()
        assert (weighted[:2] != 0).all()
        alike, plain = (
            algorithm.estimates(x._replace(ratio=r), lambda obs: obs.sum(1)).advantage
            for r in (torch.ones(8, 8), None)
        )
        torch.testing.assert_close(alike, plain)


def test_only_lagging_experience_is_corrected():
    small = ("env=hopper", "batch_size=256", "sampler.lanes=8", "algo.compile=false")
    results = []
    for correction in ("none", "truncated", "vtrace"):
        algorithm, rollout = trained(1, *small, f"algo.correction={correction}")
        results.append((algorithm.update(rollout), algorithm.update(stale(rollout))))
    fresh, late = zip(*results, strict=True)
    assert fresh[0] == fresh[1] == fresh[2]
    assert len({metrics["policy_loss"] for metrics in late}) == 3
