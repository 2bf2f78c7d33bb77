"""examples/parallel_trpo_2016: a linear baseline, and rounds whose size adapts."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from parallel_trpo_2016.adaptive_rounds import (
    BATCH_MAX,
    BATCH_MIN,
    KL_MAX,
    KL_MIN,
    AdaptiveRounds,
    adapt,
    better,
)
from parallel_trpo_2016.baseline import EpisodeClock, LinearBaseline

from tests.agent.test_episode_tracker import rollout as rollout_of
from tests.algos.on_policy.test_ppo import GAMMA, trained
from tests.algos.on_policy.test_trpo import CONSTANT_TRPO
from tests.conftest import read
from tests.examples.conftest import EXAMPLES
from tests.test_reproductions import composed
from walle.config import compose
from walle.errors import ConfigError
from walle.training import make_algorithm, make_problem, train
from walle.types import Rollout

PAPER = (
    f"hydra.searchpath=[file://{EXAMPLES}/parallel_trpo_2016/conf]",
    "algo=parallel_trpo_2016",
)
SMALL = (*PAPER, "batch_size=256", "sampler.lanes=8")


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


def test_adapting_resumes_from_its_state():
    rounds, again = (AdaptiveRounds("adaptive", 0.005, 5_000, 2, 0.0005, 600) for _ in range(2))
    for reward in [3.0] * 10 + [1.0] * 5:
        rounds.add(round_of(reward))
    again.load_state_dict(rounds.state_dict())
    for _ in range(5):
        again.add(round_of(1.0))
    assert (again.max_kl, again.rollout_steps) == (pytest.approx(0.005), 2500)


ADAPTING = (
    *PAPER,
    "algo.adapt=adaptive",
    "env=cartpole",
    "batch_size=2048",
    "eval.episodes=0",
)
SHORT = ("total_steps=25_000", "logger.progress=quiet", "sampler.lanes=16")


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
    assert float(rows[-1]["max_kl"]) == pytest.approx(0.0015)


@pytest.mark.slow
def test_overlapped_rounds_change_a_round_later(tmp_path):
    train(compose([*ADAPTING, *SHORT, "sampler.n=2", "sampler.max_lag=1"]), tmp_path)
    assert sizes(tmp_path) == [2048] * 11 + [1440] * 2


def test_free_running_samplers_cannot_change_together():
    with pytest.raises(ConfigError, match=r"algo\.name=\S+ changes .* use sampler.max_lag=0, 1"):
        compose([*ADAPTING, "sampler.max_lag=null"])


def test_the_sweep_starts_where_both_can_move_both_ways():
    sweep = OmegaConf.load(EXAMPLES.parent / "sweeps" / "reproduce_adaptive_trpo.yaml")
    assert KL_MIN < sweep.algo.max_kl < KL_MAX
    assert BATCH_MIN < sweep.batch_size < BATCH_MAX


def test_a_linear_baseline_knows_how_much_of_the_episode_is_left():
    """Eight rewards of 1, then the end: a parabola in t comes close, a constant could not."""
    chosen = ("algo.ridge=1e-6", "algo.cg_damping=0.1", "algo.max_kl=0.01")
    algorithm, _ = trained(10, *PAPER, *CONSTANT_TASK, *chosen, "+env.kwargs.ends=terminated")
    t = torch.arange(8)
    values = algorithm.baseline(torch.tensor([[0.5, -0.5]]).expand(8, 2), t)
    expected = (1 - GAMMA ** (8 - t)) / (1 - GAMMA)
    assert (values - expected).abs().max() < 0.15


CONSTANT_TASK = [each for each in CONSTANT_TRPO if not each.startswith("algo=")]


@pytest.mark.slow
@pytest.mark.parametrize("gae_lambda", [0.95, 1.0])
def test_values_of_a_constant_reward_reach_the_geometric_series(gae_lambda):
    chosen = (f"algo.gae_lambda={gae_lambda}", "algo.ridge=1e-3", "+env.kwargs.ends=truncated")
    algorithm, _ = trained(90, *PAPER, *CONSTANT_TASK, *chosen)  # the bootstrap extrapolates in t
    value = algorithm.baseline(torch.tensor([[0.5, -0.5]]), torch.tensor([3]))
    assert value.item() == pytest.approx(1 / (1 - GAMMA), rel=0.05)


def test_ridge_regression_by_hand():
    # one observation of 1 at t = 0, target 3: features [1, 1, 0, 0, 1], so w = 3 x / (3 + ridge)
    baseline = LinearBaseline(1, ridge=1.5, device="cpu")
    obs, t = torch.ones(1, 1), torch.zeros(1)
    assert baseline(obs, t).item() == 0.0
    error = baseline.fit(obs, torch.tensor([3.0]), t)
    assert baseline(obs, t).item() == pytest.approx(3 * 3 / 4.5)
    assert error == pytest.approx(1.0)
    assert baseline(torch.zeros(1, 1), torch.tensor([50.0])).item() == pytest.approx(3 / 4.5)


def timed(ended, lane, begins=()):
    """A rollout of which a clock reads the ends, the lanes, and where episodes were given up."""
    rollout = rollout_of(np.zeros(np.shape(ended)), np.asarray(ended, bool), lane=lane)
    return rollout._replace(begins=np.array(begins, bool))


def test_the_clock_continues_from_rollout_to_rollout():
    clock, again = EpisodeClock(3), EpisodeClock(3)
    ended = [[0, 0], [1, 0], [0, 0]]
    assert clock(timed(ended, [0, 2])).T.tolist() == [[0, 1, 0], [0, 1, 2]]
    again.load_state_dict(clock.state_dict())
    assert again(timed(ended[:1], [2, 0])).T.tolist() == [[3], [1]]


def test_the_clock_of_a_lane_with_two_columns_continues_in_the_second():
    assert EpisodeClock(1)(timed(np.zeros((2, 2)), [0, 0])).T.tolist() == [[0, 1], [2, 3]]


def test_the_clock_starts_again_where_an_episode_was_given_up():
    clock, ended = EpisodeClock(2), np.zeros((2, 2))
    clock(timed(ended, [0, 1]))
    assert clock(timed(ended, [0, 1], [False, True])).T.tolist() == [[2, 3], [0, 1]]
    # two rollouts of one lane in a round
    assert clock(timed(ended, [1, 1], [False, True])).T.tolist() == [[2, 3], [0, 1]]


def test_a_skipped_rollout_counts_for_times_and_for_the_size_of_rounds():
    """A lane's episode is given up between two rollouts, the second of which is dropped."""
    algorithm, rollout = trained(0, *SMALL, "env=pendulum", "algo.adapt=adaptive")
    three = Rollout(*(x[:3] if x.ndim > 1 else x for x in rollout))._replace(
        obs=rollout.obs[:4], terminated=np.zeros((3, 8), bool), truncated=np.zeros((3, 8), bool)
    )
    following = three._replace(begins=np.zeros(8, bool))
    algorithm.skip(following)
    algorithm.skip(three._replace(begins=np.ones(8, bool)))  # new episodes: the clock reads 0 1 2
    assert algorithm.clock(following).T.tolist() == [[3, 4, 5]] * 8
    algorithm.skip(following._replace(truncated=np.array([[0] * 8, [0] * 8, [1] * 8], bool)))
    assert algorithm.rounds.state_dict()["counted"] == 1


def test_the_baseline_leaves_nothing_to_compile_or_to_divide():
    with pytest.raises(ConfigError, match="takes no gradient steps"):
        compose([*PAPER, "algo.compile=true"])
    config = compose([*PAPER])
    assert config.shards == 1


def test_the_sweep_has_the_settings_of_the_paper_s_code():
    config = composed("parallel_trpo_2016", ["sampler.n=1"])
    algo, net = config.algo, config.net
    assert (algo.max_kl, algo.cg_damping, algo.gamma) == (0.001, 0.001, 0.99)
    assert (algo.cg_iterations, algo.accept_ratio, algo.shrink, algo.tries) == (10, 0.1, 0.5, 10)
    assert (algo.ridge, algo.gae_lambda) == (2.0, 1.0)
    assert (net.activation, net.log_std, list(net.policy_hidden)) == ("relu", 0.0, [64, 64])
    assert (config.sampler.collect, config.batch_size) == ("episodes", 20_000)
    algorithm = make_algorithm(config, make_problem(config)[0])
    weights = algorithm.policy.layout.unflatten(algorithm.vector)["policy.0.weight"]
    assert 0.049 < weights.abs().max() <= 0.05
