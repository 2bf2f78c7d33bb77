import math

from walle.agent import checkpoint
from walle.agent.evaluation import Evaluation, Evaluator


def test_an_evaluation_without_a_number_is_never_the_best(run, monkeypatch):
    returns = iter([math.nan, 5.0, 1.0])
    monkeypatch.setattr(Evaluator, "evaluate", lambda *_: Evaluation([next(returns)], [1]))
    _, directory = run("env=cartpole", "eval.every=256", "eval.episodes=1", "sampler=serial")
    assert checkpoint.load(directory / "checkpoints" / "best.pt")["env_steps"] == 512
