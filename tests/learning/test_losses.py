import math

import pytest
import torch

from walle.learning import losses


def vec(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_ppo_clip_by_hand():
    # ratios 2, 0.5, 1.1 with advantages 1, -1, 1 and clip 0.2:
    # min(2, 1.2) = 1.2; min(-0.5, -0.8) = -0.8; min(1.1, 1.1) = 1.1
    log_prob = vec(math.log(2), math.log(0.5), math.log(1.1))
    loss, info = losses.ppo_clip(log_prob, vec(0, 0, 0), vec(1, -1, 1), 0.2)
    assert loss.item() == pytest.approx(-(1.2 - 0.8 + 1.1) / 3)
    assert info["clip_fraction"].item() == pytest.approx(2 / 3)
    expected = (2 - 1 - math.log(2) + 0.5 - 1 - math.log(0.5) + 1.1 - 1 - math.log(1.1)) / 3
    assert info["kl"].item() == pytest.approx(expected)


def test_ppo_clip_has_no_gradient_beyond_the_clip():
    log_prob = vec(math.log(2), math.log(0.5)).requires_grad_()
    loss, _ = losses.ppo_clip(log_prob, vec(0, 0), vec(1, -1), 0.2)
    loss.backward()
    assert log_prob.grad.tolist() == [0.0, 0.0]


def test_ppo_clip_has_a_finite_gradient_where_the_ratio_overflows():
    log_prob = torch.tensor([100.0, 0.0], requires_grad=True)
    loss, _ = losses.ppo_clip(log_prob, torch.zeros(2), torch.ones(2), 0.2)
    loss.backward()
    assert log_prob.grad.tolist() == [0.0, -0.5]


def test_ppo_kl_has_a_finite_gradient_where_the_ratio_overflows():
    log_prob = torch.tensor([100.0, 0.0], requires_grad=True)
    loss, _ = losses.ppo_kl(log_prob, vec(0, 0), vec(-1, 1), vec(0, 0), 1.0, 50.0, 0.003)
    loss.backward()
    assert log_prob.grad.tolist() == [0.0, -0.5]


def test_ppo_kl_by_hand():
    # mean kl 0.01 with target 0.003: the excess over 0.006 is 0.004
    loss, info = losses.ppo_kl(vec(0, 0), vec(0, 0), vec(1, 3), vec(0.02, 0.0), 2.0, 50.0, 0.003)
    assert loss.item() == pytest.approx(-2 + 2 * 0.01 + 50 * 0.004**2)
    assert info["kl"].item() == pytest.approx(0.01)


def test_ppo_kl_without_excess_has_no_hinge():
    loss, _ = losses.ppo_kl(vec(0), vec(0), vec(1), vec(0.006), 1.0, 50.0, 0.003)
    assert loss.item() == pytest.approx(-1 + 0.006)


def test_surrogate_by_hand():
    # ratios 2 and 0.5 with advantages 3 and -4
    loss = losses.surrogate(vec(math.log(2), math.log(0.5)), vec(0, 0), vec(3, -4))
    assert loss.item() == pytest.approx(-(2 * 3 - 0.5 * 4) / 2)


def test_policy_gradient_by_hand():
    log_prob = vec(-1, -2).requires_grad_()
    loss = losses.policy_gradient(log_prob, vec(3, -4))
    loss.backward()
    assert loss.item() == -(-1 * 3 + 2 * 4) / 2
    assert log_prob.grad.tolist() == [-1.5, 2.0]


def test_the_surrogate_begins_as_the_policy_gradient():
    log_prob = vec(-1, -2).requires_grad_()
    losses.surrogate(log_prob, log_prob.detach(), vec(3, -4)).backward()
    assert log_prob.grad.tolist() == [-1.5, 2.0]


def test_value_loss_by_hand():
    assert losses.value_loss(vec(1, 3), vec(0, 0)).item() == 5.0


def test_clipped_value_loss_takes_the_larger_error():
    # old 0, value 2, clip 1: near = 1. Target 0: errors 4 and 1 -> 4. Target 3: 1 and 4 -> 4.
    loss = losses.value_loss(vec(2, 2), vec(0, 3), vec(0, 0), 1.0)
    assert loss.item() == 4.0


def test_explained_variance():
    target = vec(1, 2, 3)
    assert losses.explained_variance(target, target) == 1.0
    assert losses.explained_variance(vec(0, 0, 0), target) == 0.0
    assert losses.explained_variance(vec(3, 2, 1), target) == pytest.approx(-3.0)
    assert math.isnan(losses.explained_variance(target, vec(1, 1, 1)))


def test_bootstrap_by_hand():
    # two critics: the least of 4 and 2, of 5 and 6; the second step is terminal
    q = torch.tensor([[4.0, 5.0], [2.0, 6.0]])
    assert losses.td_target(vec(1, 1), vec(1, 0), q, 0.5).tolist() == [2.0, 1.0]


def test_soft_bootstrap_by_hand():
    # 1 + 0.5 (2 - 0.1 x -3) and 1 + 0.5 (5 - 0.1 x 10)
    q = torch.tensor([[4.0, 5.0], [2.0, 6.0]])
    target = losses.soft_td_target(vec(1, 1), vec(1, 1), q, vec(-3, 10), torch.tensor(0.1), 0.5)
    torch.testing.assert_close(target, vec(2.15, 3.0))
    terminal = losses.soft_td_target(vec(1), vec(0), q[:, :1], vec(-3), torch.tensor(0.1), 0.5)
    assert terminal.tolist() == [1.0]


def test_smoothing_clips_the_noise_and_then_the_action():
    # 0.2 x 1 stays; 0.2 x 10 is cut to 0.5, then 0.9 + 0.5 to 1; 0.2 x -10 to -0.5
    action = losses.target_policy_smoothing(vec(0.1, 0.9, 0.3), vec(1, 10, -10), 0.2, 0.5)
    torch.testing.assert_close(action, vec(0.3, 1.0, -0.2))


def test_critic_loss_sums_the_critics():
    q = torch.tensor([[1.0, 3.0], [2.0, 2.0]])
    assert losses.critic_loss(q, vec(1, 1)).item() == 2.0 + 1.0


def test_deterministic_policy_loss_by_hand():
    assert losses.deterministic_policy_loss(vec(1, 3)).item() == -2.0


def test_soft_policy_loss_by_hand():
    # E[0.5 x (-2) - 1, 0.5 x 4 - 3]
    q = torch.tensor([[1.0, 7.0], [2.0, 3.0]])
    assert losses.soft_policy_loss(q, vec(-2, 4), torch.tensor(0.5)).item() == -1.5


def test_the_temperature_falls_while_the_entropy_is_above_its_target():
    log_alpha = torch.tensor(0.3, requires_grad=True)
    loss = losses.temperature_loss(log_alpha, vec(-1, -3), -1.0)  # entropy 2, target -1
    assert loss.item() == pytest.approx(0.3 * 3)
    loss.backward()
    assert log_alpha.grad.item() == pytest.approx(3.0)  # downhill, log alpha falls


def logs(*values):
    return vec(*values).log()


def test_ppo_clip_compares_with_the_old_policy_and_weighs_by_the_advantage():
    # ratios 2, 0.5, 1.1, 1 with advantages 3, -2, 4, 1 and clip 0.2:
    # min(6, 3.6) = 3.6; min(-1, -1.6) = -1.6; 4.4; 1
    log_prob, old = logs(0.6, 0.1, 0.33, 0.7), logs(0.3, 0.2, 0.3, 0.7)
    loss, info = losses.ppo_clip(log_prob, old, vec(3, -2, 4, 1), 0.2)
    assert loss.item() == pytest.approx(-(3.6 - 1.6 + 4.4 + 1) / 4)
    assert info["clip_fraction"].item() == 2 / 4


def test_a_ratio_on_the_bound_is_not_clipped():
    _, info = losses.ppo_clip(vec(0), vec(0), vec(1), 0.0)
    assert info["clip_fraction"].item() == 0


def test_ppo_kl_compares_with_the_old_policy():
    # ratios 2 and 0.5 with advantages 3 and -2; no divergence
    loss, _ = losses.ppo_kl(logs(0.6, 0.1), logs(0.3, 0.2), vec(3, -2), vec(0, 0), 1.0, 50.0, 0.01)
    assert loss.item() == pytest.approx(-(6 - 1) / 2)


def test_a_value_is_clipped_below_too():
    # old 1, value -1, clip 0.5: near = 0.5. Target -1: errors 0 and 2.25
    assert losses.value_loss(vec(-1), vec(-1), vec(1), 0.5).item() == 2.25


def test_a_value_is_clipped_only_where_a_bound_and_an_old_value_are_given():
    # value 2 is 2 off its target; clipped to 1 around 5 it would be 4 off
    assert losses.value_loss(vec(2), vec(0), vec(5), None).item() == 4.0
    assert losses.value_loss(vec(2), vec(0), None, 1.0).item() == 4.0


def test_smoothing_bounds_both_sides():
    # noise of 2 is cut to 0.5 and -2 to -0.5; -0.9 - 0.5 is cut to -1
    action = losses.target_policy_smoothing(vec(0.3, -0.9), vec(10, -10), 0.2, 0.5)
    torch.testing.assert_close(action, vec(0.8, -1.0))


def test_critic_loss_is_the_mean_over_the_batch_and_the_sum_over_the_critics():
    # errors 0, 2, 4 of the first critic and 1, 1, 1 of the second
    q = torch.tensor([[1.0, 3.0, 5.0], [2.0, 2.0, 2.0]])
    assert losses.critic_loss(q, vec(1, 1, 1)).item() == pytest.approx((0 + 4 + 16) / 3 + 1)


def test_a_categorical_target_by_hand():
    # atoms -1, 0 and 1: -2 counts as -1, 0.25 is divided 3 : 1 and 0.5 evenly; 1 and 3 are atom 1
    p = torch.stack((vec(0.2, 0.3, 0.5), vec(0.1, 0.2, 0.7)))
    y = torch.stack((vec(-2, 0.25, 0.5), vec(0, 1, 3)))
    target = losses.categorical_target(p, y, 1.0)
    expected = torch.stack((vec(0.2, 0.225 + 0.25, 0.075 + 0.25), vec(0, 0.1, 0.9)))
    torch.testing.assert_close(target, expected)
    # other atoms: -2, -1, 0, 1 and 2
    p, y = torch.full((1, 5), 0.2, dtype=torch.float64), torch.full((1, 5), -1.5).double()
    torch.testing.assert_close(losses.categorical_target(p, y, 2.0), vec(0.5, 0.5, 0, 0, 0)[None])


def test_cross_entropy_by_hand():
    logits = torch.log(torch.stack((vec(0.25, 0.75), vec(0.5, 0.5)))).expand(2, 2, 2)
    target = torch.stack((vec(1, 0), vec(0.5, 0.5)))
    expected = 2 * (math.log(4) + math.log(2)) / 2  # two critics, the mean of two rows
    assert losses.cross_entropy(logits, target).item() == pytest.approx(expected)
