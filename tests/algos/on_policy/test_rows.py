import pytest
import torch

from tests.algos.on_policy.test_ppo import stale, trained
from tests.conftest import read
from tests.test_training import learned
from walle.agent import checkpoint
from walle.algos.on_policy.rows import SequenceInputs, SequenceRows
from walle.config import compose
from walle.nets.features import GRU
from walle.training import make_algorithm, make_problem, train

SMALL = ("net=gru", "net.sequence=8", "batch_size=256", "sampler.lanes=8", "algo.epochs=2")
RECALL = ("env=gym", "env.id=tests.toy:Recall-v0", "sampler=serial")


def experience_of(algorithm, rollout):
    return algorithm.normalizers.experience(rollout)


def test_a_row_is_consecutive_steps_of_a_lane_with_the_state_before_them():
    algorithm, rollout = trained(2, "env=cartpole", *SMALL)
    x = experience_of(algorithm, rollout)
    params, T, L, K = algorithm.networks.split(algorithm.vector)[0], 32, 8, 8
    seen = algorithm.rows.with_features(params, x)
    number = torch.arange(T).unsqueeze(1) + 100.0 * torch.arange(L)  # step + 100 lane
    rows, inputs = algorithm.rows.as_rows(number), algorithm.rows.inputs(x, seen)
    assert rows.shape == (T // K * L, K)
    for row, began, state in zip(rows, inputs.began, inputs.state, strict=True):
        lane, first = int(row[0]) // 100, int(row[0]) % 100
        assert row.tolist() == list(range(int(row[0]), int(row[0]) + K))
        before = x.state[lane] if first == 0 else seen.obs[first - 1, lane]
        assert torch.equal(state, before)
        assert began.tolist() == x.began[first : first + K, lane].tolist()
    assert x.state.any()


def test_sequences_are_unrolled_to_the_states_of_the_whole_round():
    algorithm, rollout = trained(2, "env=cartpole", *SMALL)
    x, params = experience_of(algorithm, rollout), algorithm.networks.split(algorithm.vector)[0]
    assert x.ended.any()
    seen = algorithm.rows.with_features(params, x)
    features = algorithm.rows.features(params, algorithm.rows.inputs(x, seen))
    expected = algorithm.rows.as_rows(seen.obs)
    torch.testing.assert_close(features, expected, atol=1e-6, rtol=1e-5)


def test_a_successor_never_seen_is_one_step_on_from_the_state_before_it():
    algorithm, rollout = trained(0, "env=hopper", "env.episode_limit=5", *SMALL)
    x, params = experience_of(algorithm, rollout), algorithm.networks.split(algorithm.vector)[0]
    assert rollout.truncated.any()
    seen = algorithm.rows.with_features(params, x)
    unseen = x.states[x.ended.numel() :]
    places = x.needs_final_obs.nonzero().tolist()
    assert len(places) == len(unseen) > x.ended.sum()
    for (t, lane), obs, state in zip(places, unseen, seen.states[x.ended.numel() :], strict=True):
        before = seen.obs[t, lane].unsqueeze(0)
        expected = algorithm.policy.memory.step(params, obs.unsqueeze(0), before)
        torch.testing.assert_close(state, expected[0])


@pytest.mark.parametrize("env", ["hopper", "cartpole"])
def test_the_first_ratio_of_a_round_is_one(env):
    algorithm, rollout = trained(3, f"env={env}", *SMALL)
    x = experience_of(algorithm, rollout)
    batch = algorithm.batch(x, algorithm.vector)
    params = algorithm.networks.split(algorithm.vector)[0]
    dist = algorithm.policy.dist(params, algorithm.rows.features(params, batch.obs))
    ratio = (algorithm.policy.log_prob(dist, batch.action) - batch.log_prob).exp()
    assert ratio.shape == (32, 8)
    assert (ratio - 1).abs().max() < 1e-5


def test_gradients_reach_back_through_the_sequence_but_not_past_an_episodes_end():
    gru = GRU("m", 1, 4)
    params = gru.init(torch.Generator().manual_seed(0))
    rows = SequenceRows(gru, 6, 6)
    obs = torch.ones(1, 6, 1, requires_grad=True)
    began = torch.tensor([[False, False, False, True, False, False]])
    inputs = SequenceInputs(obs, began, torch.zeros(1, 4))
    rows.features(params, inputs)[0, -1].sum().backward()
    assert (obs.grad[0, :3] == 0).all()
    assert (obs.grad[0, 3:] != 0).all()


@pytest.mark.slow
def test_learning_does_not_depend_on_the_number_of_samplers(run):
    small = ("env=cartpole", *SMALL)
    _, serial = run(*small, "sampler=serial")
    expected = learned(serial)
    assert len(expected) == 3
    for n in (1, 2, 3):
        assert learned(run(*small, f"sampler.n={n}")[1]) == expected


@pytest.mark.parametrize("max_lag", ["1", "null"])
def test_it_learns_from_older_policies_too(run, max_lag):
    overrides = ("env=pendulum", *SMALL, "sampler.n=2", f"sampler.max_lag={max_lag}")
    rows = read(run(*overrides, "total_steps=2560")[1] / "iterations.csv")
    assert max(int(row["lag_max"]) for row in rows) >= 1


def test_the_ratio_begins_at_one_with_an_older_policys_experience_too():
    once = ("algo.epochs=1", "algo.minibatch_size=256", "algo.learning_rate=0.03")
    kl = {}
    for correction in ("none", "truncated", "vtrace"):
        chosen = f"algo.correction={correction}"
        algorithm, rollout = trained(1, "env=hopper", *SMALL, *once, "algo.target_kl=null", chosen)
        algorithm.update(rollout)
        kl[correction] = algorithm.update(stale(rollout))["kl"]
    assert kl["none"] > 1e-3
    assert kl["truncated"] == pytest.approx(0, abs=1e-6)
    assert kl["vtrace"] == pytest.approx(0, abs=1e-6)


def test_two_learners_learn_what_one_does(run):
    one, two = (
        run("env=cartpole", *SMALL, "learner.shards=2", f"learner.n={n}", "sampler=serial")[1]
        for n in (1, 2)
    )
    for alone, shared in zip(learned(one)[:2], learned(two)[:2], strict=True):
        assert shared["loss"] == alone["loss"]


def test_it_goes_on_from_its_checkpoint(tmp_path):
    quick = ("eval.episodes=0", "logger.progress=quiet", "total_steps=512", "sampler=serial")
    config = compose(["env=pendulum", *SMALL, *quick])
    train(config, tmp_path)
    state = checkpoint.load(tmp_path / "checkpoints" / "last.pt")
    algorithm = make_algorithm(config, make_problem(config)[0])
    algorithm.load_state_dict(state["algorithm"])
    assert (algorithm.snapshot().vector == state["snapshot"]["vector"].numpy()).all()


RECALLED = (
    *("batch_size=1536", "sampler.lanes=64", "algo.minibatch_size=384", "algo.epochs=4"),
    *("algo.learning_rate=3e-3", "net.policy_hidden=[16]", "net.critic_hidden=[16]"),
    *("total_steps=23040", "eval.every=23040", "eval.episodes=50", "logger.return_window=200"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "low", "high"),
    [(("net=mlp",), 0.3, 0.7), (("net=gru", "net.hidden=16", "net.sequence=12"), 0.95, 1.0)],
)
def test_only_a_memory_recalls_a_cue(run, net, low, high):
    outcome, directory = run(*RECALL, *net, *RECALLED)
    assert low <= outcome.return_mean <= high
    (evaluated,) = read(directory / "eval.csv")
    assert low <= float(evaluated["return_mean"]) <= high
