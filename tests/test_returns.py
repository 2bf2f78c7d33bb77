import pytest
import torch

from walle import returns


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
