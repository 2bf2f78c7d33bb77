import numpy as np
import pytest
from walle.algos.on_policy.adaptive_rounds import AdaptiveRounds, adapt, better

from tests.conftest import read
from walle.config import compose
from walle.errors import ConfigError
from walle.training import train
from walle.types import Rollout


@pytest.mark.parametrize(
    ("max_kl", "batch", "improved", "expected"),
    [
        (0.005, 5_000, True, (0.0055, 4_400)),
        (0.005, 5_000, False, (0.0045, 5_600)),
        (0.01, 1_200, True, (0.01, 1_200)),  # at the limits
        (0.0098, 1_500, True, (0.01, 1_200)),  # next to them
        (0.001, 20_000, False, (0.001, 20_000)),
        (0.0012, 19_700, False, (0.001, 20_000)),
        (0.02, 800, True, (0.02, 800)),  # beyond them: not pushed further, not pulled back
        (0.02, 800, False, (0.0195, 1_400)),
        (0.0005, 25_000, False, (0.0005, 25_000)),
        (0.0005, 25_000, True, (0.001, 24_400)),
    ],
)
def test_adaptation_by_hand(max_kl, batch, improved, expected):
    found = adapt(max_kl, batch, improved=improved, kl_step=0.0005, batch_step=600)
    assert found == pytest.approx(expected)


def test_the_margin_is_five_percent_of_the_size_of_the_sum_before():
    assert better(100.0, 100.0, "adaptive")
    assert not better(104.0, 100.0, "adaptive_margin")
    assert better(106.0, 100.0, "adaptive_margin")
    assert better(-94.0, -100.0, "adaptive_margin")
    assert not better(-96.0, -100.0, "adaptive_margin")


def round_of(reward, lanes=2, steps=3, ends=True):
    """A rollout of equal rewards; with its last step every lane's episode ends, or none does."""
    terminated = np.zeros((steps, lanes), bool)
    terminated[-1] = ends
    zero = np.zeros((steps, lanes), np.float32)
    return Rollout(
        *(np.zeros((steps + 1, lanes, 1), np.float32), zero[..., None], zero[..., None]),
        *(zero + reward, terminated, np.zeros_like(terminated), zero),
        *(np.arange(lanes), np.zeros(lanes, np.int64)),
    )


@pytest.mark.parametrize("kind", ["adaptive", "adaptive_margin"])
def test_every_ten_rounds_are_compared_with_the_ten_before(kind):
    rounds = AdaptiveRounds(kind, 0.005, 5_000, 2, 0.0005, 600)
    sizes = []
    for reward in [1.0] * 10 + [2.0] * 10 + [1.5] * 10:
        rounds.add(round_of(reward))
        sizes.append(rounds.rollout_steps)
    # the first ten have nothing to be worse than; then better, then worse
    assert sizes == [2500] * 9 + [2200] * 10 + [1900] * 10 + [2200]
    assert rounds.max_kl == pytest.approx(0.0055)


def test_rounds_without_an_end_do_not_count_and_episodes_run_on():
    rounds = AdaptiveRounds("adaptive", 0.005, 5_000, 2, 0.0005, 600)
    for _ in range(9):
        rounds.add(round_of(1.0, ends=False))
        rounds.add(round_of(1.0))
    assert rounds.rollout_steps == 2500
    assert rounds.state_dict()["sum"] == pytest.approx(9 * 6.0)
    rounds.add(round_of(1.0))
    assert rounds.rollout_steps == 2200


def test_a_state_goes_on():
    rounds, again = (AdaptiveRounds("adaptive", 0.005, 5_000, 2, 0.0005, 600) for _ in range(2))
    for reward in [3.0] * 10 + [1.0] * 5:
        rounds.add(round_of(reward))
    again.load_state_dict(rounds.state_dict())
    for _ in range(5):
        again.add(round_of(1.0))
    assert (again.max_kl, again.rollout_steps) == (pytest.approx(0.005), 2500)


ADAPTING = (
    "algo=trpo",
    "algo.adapt=adaptive",
    "env=cartpole",
    "batch_size=2048",
    "eval.every=null",
)
SHORT = ("total_steps=25_000", "algo.value_epochs=1", "logger.progress=quiet", "sampler.lanes=16")


def sizes(directory):
    steps = [0, *(int(row["env_steps"]) for row in read(directory / "iterations.csv"))]
    return np.diff(steps).tolist()


@pytest.mark.slow
def test_rounds_change_their_size_alike_for_every_number_of_samplers(tmp_path):
    """Ten rounds of 2,048, then of 1,440: 1,448 / 16 lanes is 90 steps."""
    found = []
    for n in (1, 3):
        train(compose([*ADAPTING, *SHORT, f"sampler.n={n}"]), tmp_path / str(n))
        rows = read(tmp_path / str(n) / "iterations.csv")
        found.append([(row["kl"], row["max_kl"], row["return_mean"]) for row in rows])
        assert sizes(tmp_path / str(n)) == [2048] * 10 + [1440] * 4
    assert found[0] == found[1]
    assert float(rows[-1]["max_kl"]) == pytest.approx(0.01)


@pytest.mark.slow
def test_overlapped_rounds_change_a_round_later(tmp_path):
    train(compose([*ADAPTING, *SHORT, "sampler.n=2", "sampler.max_lag=1"]), tmp_path)
    assert sizes(tmp_path) == [2048] * 11 + [1440] * 2


def test_free_running_samplers_cannot_change_together():
    with pytest.raises(
        ConfigError, match=r"algo.adapt changes the length .* use sampler.max_lag=0 or 1"
    ):
        compose([*ADAPTING, "sampler.max_lag=null"])
