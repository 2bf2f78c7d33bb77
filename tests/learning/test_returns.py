import pytest
import torch

from walle.learning import returns


def column(*values):
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def test_td_errors_by_hand():
    delta = returns.td_errors(column(1, 2), column(1, 0), column(10, 20), column(30, 40), 0.5)
    assert delta.flatten().tolist() == [1 + 15 - 10, 2 - 20]


def test_gae_by_hand():
    # delta = [1 + .5*4 - 2, 1 + .5*6 - 4] = [1, 0]; A_1 = 0; A_0 = 1 + .25 * 0
    advantage = returns.gae(
        column(1, 1), column(1, 1), column(0, 0), column(2, 4), column(4, 6), 0.5, 0.5
    )
    assert advantage.flatten().tolist() == [1.0, 0.0]


def test_gae_carries_later_errors_back():
    # all values 0: delta = r = [0, 0, 8]; A = [.25^2 * 8, .25 * 8, 8]
    zero = column(0, 0, 0)
    advantage = returns.gae(column(0, 0, 8), column(1, 1, 1), zero, zero, zero, 0.5, 0.5)
    assert advantage.flatten().tolist() == [0.5, 2.0, 8.0]


def test_gae_stops_at_the_end_of_an_episode():
    zero = column(0, 0, 0)
    advantage = returns.gae(column(0, 0, 8), column(1, 1, 1), column(0, 1, 0), zero, zero, 0.5, 0.5)
    assert advantage.flatten().tolist() == [0.0, 0.0, 8.0]


def test_truncated_bootstraps_and_terminated_does_not():
    value, successor = column(0.0), column(10.0)
    truncated = returns.gae(column(1), column(1), column(1), value, successor, 0.5, 1.0)
    terminated = returns.gae(column(1), column(0), column(1), value, successor, 0.5, 1.0)
    assert truncated.item() == 6.0
    assert terminated.item() == 1.0


def test_gae_with_lambda_1_is_the_return_minus_the_value():
    torch.manual_seed(0)
    reward, value, last = torch.rand(5, 3), torch.rand(5, 3), torch.rand(3)
    next_value = torch.cat((value[1:], last[None]))
    ended = torch.zeros(5, 3)
    advantage = returns.gae(reward, torch.ones(5, 3), ended, value, next_value, 0.9, 1.0)
    expected = returns.discounted_sums(reward, ended, 0.9, last) - value
    torch.testing.assert_close(advantage, expected)


def test_discounted_sums_by_hand():
    sums = returns.discounted_sums(column(1, 2, 3), column(0, 1, 0), 0.5, torch.tensor([4.0]))
    assert sums.flatten().tolist() == [1 + 0.5 * 2, 2.0, 3 + 0.5 * 4]


def test_shapes_are_checked_and_both_are_named():
    with pytest.raises(ValueError, match=r"reward.*\(2, 1\).*value.*\(3, 1\)"):
        returns.td_errors(column(1, 2), column(1, 1), column(1, 2, 3), column(1, 2), 0.5)


def test_vtrace_by_hand():
    # delta = [3 + 3 - 4, 4 + 4 - 6] = [2, 2]
    # rho = c = [0.5, 1]: v_1 - V_1 = 1 * 2 = 2; v_0 - V_0 = 0.5 * 2 + 0.5 * 0.5 * 2 = 1.5
    target, advantage = returns.vtrace(
        column(3, 4), column(1, 1), column(0, 0), column(4, 6), column(6, 8), column(0.5, 3), 0.5, 1
    )
    assert target.flatten().tolist() == [4 + 1.5, 6 + 2]
    assert advantage.flatten().tolist() == [3 + 0.5 * (6 + 2) - 4, 2.0]


def test_vtrace_bounds_its_two_weights_apart():
    # delta = [2, 2]; rho_max 2 and c_max 1: rho = [0.5, 2], c = [0.5, 1], lambda 0.5
    # trace_1 = 2 * 2 = 4; trace_0 = 0.5 * 2 + 0.5 * (0.5 * 0.5) * 4 = 1.5
    target, advantage = returns.vtrace(
        *(column(3, 4), column(1, 1), column(0, 0), column(4, 6), column(6, 8), column(0.5, 3)),
        *(0.5, 0.5),
        rho_max=2.0,
    )
    assert target.flatten().tolist() == [5.5, 10.0]
    assert advantage.flatten().tolist() == [2 + 0.25 * 4, 2.0]


def test_vtrace_of_equal_policies_is_the_n_step_return():
    torch.manual_seed(0)
    reward, value, last = torch.rand(5, 3), torch.rand(5, 3), torch.rand(3)
    next_value = torch.cat((value[1:], last[None]))
    one, ended = torch.ones(5, 3), torch.zeros(5, 3)
    target, advantage = returns.vtrace(reward, one, ended, value, next_value, one, 0.9, 1.0)
    n_step = returns.discounted_sums(reward, ended, 0.9, last)
    torch.testing.assert_close(target, n_step)
    torch.testing.assert_close(advantage, n_step - value)


def test_vtrace_of_equal_policies_is_gae_for_every_lambda():
    torch.manual_seed(0)
    reward, value, next_value = torch.rand(3, 7, 2)
    ended = (torch.rand(7, 2) < 0.3).float()
    continues = 1 - ended * (torch.rand(7, 2) < 0.5)
    same = (reward, continues, ended, value, next_value)
    target, advantage = returns.vtrace(*same, torch.ones(7, 2), 0.9, 0.8)
    torch.testing.assert_close(advantage, returns.gae(*same, 0.9, 0.8))
    torch.testing.assert_close(target, advantage + value)


def test_vtrace_stops_at_the_end_of_an_episode():
    zero, one = column(0, 0, 0), column(1, 1, 1)
    target, advantage = returns.vtrace(
        column(0, 0, 8), one, column(0, 1, 0), zero, zero, one, 0.5, 1.0
    )
    assert target.flatten().tolist() == advantage.flatten().tolist() == [0.0, 0.0, 8.0]


@pytest.mark.parametrize("wrong", ["reward", "continues", "value", "next_value"])
def test_td_errors_refuse_an_input_that_would_be_broadcast(wrong):
    inputs = dict.fromkeys(("reward", "continues", "value", "next_value"), column(1, 2))
    with pytest.raises(ValueError, match=rf"'{wrong}': \(1, 1\)"):
        returns.td_errors(**{**inputs, wrong: column(1)}, gamma=0.5)


@pytest.mark.parametrize("wrong", ["x", "ended"])
def test_discounted_sums_refuse_an_input_that_would_be_broadcast(wrong):
    inputs = {"x": column(1, 2), "ended": column(0, 0), wrong: column(1)}
    with pytest.raises(ValueError, match=rf"'{wrong}': \(1, 1\)"):
        returns.discounted_sums(**inputs, discount=0.5, last=torch.zeros(1))


@pytest.mark.parametrize("wrong", ["ended", "ratio"])
def test_vtrace_refuses_an_input_that_would_be_broadcast_and_names_all(wrong):
    names = ("reward", "continues", "ended", "value", "next_value", "ratio")
    inputs = {**dict.fromkeys(names, column(1, 1)), wrong: column(1)}
    with pytest.raises(ValueError, match=r"'reward': .*'ended': .*'ratio': ") as caught:
        returns.vtrace(**inputs, gamma=0.5, lam=1.0)
    assert f"'{wrong}': (1, 1)" in str(caught.value)


def test_episode_ends_may_be_booleans():
    # reward 1, 2, 3 with values 0: sums [1 + .5 * 2, 2, 3]
    reward, zero, one = column(1, 2, 3), column(0, 0, 0), column(1, 1, 1)
    ended = column(0, 1, 0).bool()
    assert returns.gae(reward, one, ended, zero, zero, 0.5, 1.0).flatten().tolist() == [2, 2, 3]
    target, advantage = returns.vtrace(reward, one, ended, zero, zero, one, 0.5, 1.0)
    assert target.flatten().tolist() == advantage.flatten().tolist() == [2, 2, 3]


def test_vtrace_cuts_both_weights_at_1_unless_told_otherwise():
    # delta = [3 + 3 - 4, 4 + 4 - 6] = [2, 2]; rho = c = 1: trace_1 = 2, trace_0 = 2 + .5 * 2
    target, advantage = returns.vtrace(
        column(3, 4), column(1, 1), column(0, 0), column(4, 6), column(6, 8), column(3, 3), 0.5, 1
    )
    assert target.flatten().tolist() == [4 + 3, 6 + 2]
    assert advantage.flatten().tolist() == [2 + 0.5 * 2, 2]


def test_vtrace_of_a_single_step():
    # delta = 3 + 0.5 * 6 - 4, rho = 0.5
    target, advantage = returns.vtrace(
        column(3), column(1), column(0), column(4), column(6), column(0.5), 0.5, 1.0
    )
    assert (target.item(), advantage.item()) == (4 + 1.0, 2.0)
