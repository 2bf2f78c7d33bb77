import pytest
import torch

from tests.conftest import read
from walle.agent import evaluation
from walle.agent.evaluation import Evaluator
from walle.envs import EnvSpec
from walle.errors import RolloutError
from walle.nets.features import GRU
from walle.nets.policies import CategoricalPolicy, FeaturePolicy
from walle.types import PolicySnapshot


@pytest.fixture
def evaluate():
    """Evaluates a random policy in an environment that never ends by itself."""
    policy = CategoricalPolicy(2, 2, (4,), torch.tanh)
    vector = policy.init(torch.Generator().manual_seed(0))
    snapshot = PolicySnapshot(0, torch.cat((vector, torch.zeros(2), torch.ones(2))).numpy())

    def _evaluate(interrupted, how="well", **spec):
        env = EnvSpec("tests.toy:Rude-v0", {"how": how}, **spec)
        evaluator = Evaluator(env, policy, None, episodes=2, seed=0)
        return evaluator.evaluate(snapshot, 0, interrupted)

    return _evaluate


def test_an_episode_is_as_long_as_its_limit(evaluate):
    found = evaluate(lambda: False, episode_limit=7)
    assert (found.lengths, found.returns) == ([7, 7], [7.0, 7.0])


def test_an_episode_that_never_ends_is_cut(evaluate, monkeypatch):
    monkeypatch.setattr(evaluation, "LONGEST", 12)
    assert evaluate(lambda: False).lengths == [12, 12]


def test_every_evaluation_begins_with_an_empty_memory():
    readout = CategoricalPolicy(8, 2, (16,), torch.tanh)
    policy = FeaturePolicy(readout, memory=GRU("memory", 2, 8))
    vector = policy.init(torch.Generator().manual_seed(0))
    snapshot = PolicySnapshot(0, torch.cat((vector, torch.zeros(2), torch.ones(2))).numpy())
    evaluator = Evaluator(EnvSpec("tests.toy:Recall-v0"), policy, None, episodes=3, seed=0)
    actor, states = evaluator._actor, []
    forward = actor.dist_params

    def dist_params(obs):
        states.append(actor.state.copy())
        return forward(obs)

    actor.dist_params = dist_params
    for number in range(2):
        evaluator.evaluate(snapshot, number, lambda: False)
    assert [state.any() for state in states] == 2 * [False, *5 * [True]]


def test_a_return_that_is_no_finite_number_is_refused(evaluate):
    with pytest.raises(RolloutError, match=r"of an evaluation returned inf: .* mask it"):
        evaluate(lambda: False, how="infinite reward", episode_limit=3)


def test_an_observation_that_is_no_finite_number_reaches_no_policy(evaluate):
    with pytest.raises(RolloutError, match=r"of an evaluation saw an observation with nan: clip"):
        evaluate(lambda: False, how="blind", episode_limit=3)


def test_episodes_that_end_at_a_fault_are_told(evaluate, capsys):
    found = evaluate(lambda: False, how="blind", episode_limit=3, on_error="reset")
    assert found.lengths == [0, 0]
    assert "2 of 2 episodes of an evaluation ended at a fault" in capsys.readouterr().err


def test_an_evaluation_can_be_interrupted(evaluate):
    assert evaluate(lambda: True) is None


@pytest.mark.parametrize("saving", ["pickle", "none"])
def test_an_evaluation_depends_on_its_number_and_not_on_those_before(saving):
    """But for an environment that keeps something across episodes and cannot be saved."""
    policy = CategoricalPolicy(2, 2, (4,), torch.tanh)
    vector = policy.init(torch.Generator().manual_seed(0))
    snapshot = PolicySnapshot(0, torch.cat((vector, torch.zeros(2), torch.ones(2))).numpy())
    env = EnvSpec("tests.toy:Season-v0", saving=saving)  # its rewards fall from episode to episode
    many, one = (Evaluator(env, policy, None, episodes=2, seed=0) for _ in range(2))
    found = [many.evaluate(snapshot, number, lambda: False) for number in (0, 1, 2)]
    alone = one.evaluate(snapshot, 2, lambda: False)
    assert (alone == found[2]) == (saving == "pickle")
    for evaluator in (many, one):
        evaluator.close()


def test_every_evaluation_begins_other_episodes(evaluate_number):
    marks = [evaluate_number(number) for number in (0, 1, 0)]
    assert marks[0] == marks[2] != marks[1]


@pytest.fixture
def evaluate_number():
    """The observations of an evaluation with that number."""
    policy = CategoricalPolicy(4, 2, (4,), torch.tanh)
    vector = policy.init(torch.Generator().manual_seed(0))
    snapshot = PolicySnapshot(0, torch.cat((vector, torch.zeros(4), torch.ones(4))).numpy())
    evaluator = Evaluator(EnvSpec("CartPole-v1"), policy, None, episodes=2, seed=0)
    seen, likeliest = [], evaluator._actor.likeliest

    def noted(obs):
        seen.append(obs.tobytes())
        return likeliest(obs)

    evaluator._actor.likeliest = noted

    def _evaluate_number(number):
        seen.clear()
        evaluator.evaluate(snapshot, number, lambda: False)
        return list(seen)

    yield _evaluate_number
    evaluator.close()


def test_a_stochastic_evaluation_runs_the_same_episodes_with_drawn_actions():
    """Both kinds begin CartPole with the same seeds; drawn actions end the episodes elsewhere."""
    policy = CategoricalPolicy(4, 2, (8,), torch.tanh)
    vector = policy.init(torch.Generator().manual_seed(0))
    snapshot = PolicySnapshot(0, torch.cat((vector, torch.zeros(4), torch.ones(4))).numpy())

    def evaluate(number, stochastic):
        env = EnvSpec("CartPole-v1")
        evaluator = Evaluator(env, policy, None, episodes=8, seed=0, stochastic=stochastic)
        return evaluator.evaluate(snapshot, number, lambda: False)

    plain, both = evaluate(0, False), evaluate(0, True)
    assert plain.stochastic is None
    assert (both.returns, both.lengths) == (plain.returns, plain.lengths)
    drawn = both.stochastic
    assert drawn.returns != plain.returns
    assert evaluate(0, True) == both  # noise depends on the evaluation's number alone
    assert evaluate(1, True).stochastic != drawn


def test_both_kinds_stand_in_a_row_of_eval_csv(run):
    overrides = ("env=cartpole", "sampler=serial", "eval.every=512", "eval.episodes=2")
    _, directory = run(*overrides, "eval.stochastic=true", "sampler.lanes=8")
    rows = read(directory / "eval.csv")
    names = [name for name in rows[0] if name.startswith("stochastic_")]
    assert names == [f"stochastic_{name}" for name in list(rows[0])[3:9]]
    assert all(float(row["stochastic_length_mean"]) > 0 for row in rows)
