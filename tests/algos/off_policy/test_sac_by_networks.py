"""SAC's updates by networks: the numbers of undivided updates, the bits of one learner for two."""

import pytest
import torch

from tests.algos.off_policy.test_base import made
from tests.algos.off_policy.test_sac import AIM
from tests.learning.sharing.test_team import in_threads, nothing
from walle.errors import ConfigError
from walle.learning.gradient_steps import leaves
from walle.learning.sharing.team import SharedMemory, SharedTeam

UPDATES, ROWS, ACTIONS = 6, 64, 1
DIVIDED = "learner.divide=networks"


def drawn(width):
    """Minibatches and noise of six updates."""
    generator = torch.Generator().manual_seed(1)
    minibatches = torch.randn(UPDATES, 1, ROWS, width, generator=generator)
    return minibatches, torch.randn(UPDATES, 1, 2, ROWS, ACTIONS, generator=generator)


def learned(*overrides):
    """The state's tensors and the metrics after six updates."""
    return learned_by(made("sac", *AIM, *overrides))


def learned_by(algorithm):
    metrics = algorithm.learn(*drawn(algorithm.replay.width))
    return [*leaves(algorithm.state), torch.stack(metrics)]


@pytest.mark.parametrize("net", [(), ("net=own", "net.name=tests.algos.test_own_nets:Wide")])
def test_undivided_updates_give_the_same_numbers_but_for_rounding(net):
    whole, parts = learned(*net), learned(DIVIDED, *net)
    for x, y in zip(whole, parts, strict=True):
        torch.testing.assert_close(x, y, atol=1e-6, rtol=1e-5)
    assert whole[-1].shape == (UPDATES, 5)


def test_a_target_of_the_entropy_is_that_of_undivided_updates():
    target = "algo.target_entropy=-3"
    whole, parts = learned(target), learned(DIVIDED, target)
    torch.testing.assert_close(whole[-1], parts[-1])
    assert not whole[-1].equal(learned()[-1])  # it shows in the metrics


def test_the_bits_do_not_depend_on_the_number_of_learners():
    torch.set_num_threads(1)
    alone = learned(DIVIDED)
    for size in (1, 2):
        memory, made_alike = SharedMemory(size), [made("sac", *AIM, DIVIDED) for _ in range(size)]

        def learner(rank, memory=memory, made_alike=made_alike):
            made_alike[rank].join(SharedTeam(rank, memory, "cpu", nothing))
            return learned_by(made_alike[rank])

        for found in in_threads(size, learner):
            assert all(map(torch.equal, found, alone))


def test_an_odd_minibatch_has_no_halves():
    with pytest.raises(ConfigError, match=r"minibatch_size=63 with learner.divide=networks.*even"):
        made("sac", *AIM, "algo.minibatch_size=63", DIVIDED)
