"""Learning on a GPU: the numbers of a CPU, and samplers that never notice. Run by `make gpu`."""

import pytest
import torch

from tests.algos.on_policy.test_ppo import trained
from tests.conftest import read
from walle.agent import checkpoint
from walle.config import compose
from walle.training import make_algorithm, make_problem, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SMALL = ("env=hopper", "batch_size=512", "sampler.lanes=8", "total_steps=1e5", "algo.compile=false")
ON_POLICY = ("ppo", "ppo_kl", "trpo", "a2c")
OFF_POLICY = ("ddpg", "td3", "sac", "xqc")
# Adam's first steps follow a gradient's sign, which rounding decides near zero. Small steps keep
# the difference that follows, and grows for hundreds of updates, below the tests' bounds.
SLOW = "algo.learning_rate=1e-4"


def twins(*overrides):
    """The same algorithm on both devices, and a round that neither has learned from."""
    ours, rollout = trained(1, *SMALL, *overrides)
    config = compose(["sampler=serial", "eval.episodes=0", *SMALL, *overrides, "device=cuda"])
    theirs = make_algorithm(config, make_problem(config)[0])
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs, rollout


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_round_teaches_both_devices_the_same(name):
    ours, theirs, rollout = twins(f"algo={name}")
    ours.update(rollout)
    theirs.update(rollout)
    assert theirs.vector.device.type == "cuda"
    torch.testing.assert_close(theirs.vector.cpu(), ours.vector, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", OFF_POLICY)
def test_updates_from_the_buffer_teach_both_devices_the_same(name):
    starts = ("algo.learning_starts=1000", "algo.minibatch_size=64", SLOW)
    ours, theirs, rollout = twins(f"algo={name}", *starts)
    assert ours.update(rollout)["gradient_steps"] == theirs.update(rollout)["gradient_steps"] > 0
    policies = [algorithm.state.policy.vector for algorithm in (theirs, ours)]
    assert policies[0].device.type == "cuda"
    torch.testing.assert_close(policies[0].cpu(), policies[1], atol=5e-3, rtol=0)


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_compiled_and_eager_agree(name):
    starts = ("algo.learning_starts=1000", SLOW) if name == "sac" else ("algo.epochs=2",)
    eager, compiled, rollout = twins(f"algo={name}", *starts)
    config = compose(
        ["sampler=serial", *SMALL, f"algo={name}", *starts, "device=cuda", "algo.compile=true"]
    )
    compiled = make_algorithm(config, make_problem(config)[0])
    compiled.load_state_dict(eager.state_dict())
    assert "compiled" in compiled.warm_up()
    eager.update(rollout)
    compiled.update(rollout)
    torch.testing.assert_close(
        torch.from_numpy(compiled.snapshot().vector),
        torch.from_numpy(eager.snapshot().vector),
        atol=5e-3,
        rtol=0,
    )


@pytest.mark.parametrize("name", [*ON_POLICY, *OFF_POLICY])
def test_a_run_learns_there_and_acts_here(name, tmp_path):
    starts = ("algo.learning_starts=600",) if name in OFF_POLICY else ()
    rounds = ("total_steps=1536", "sampler.n=2", "eval.episodes=0", "logger.progress=quiet")
    config = compose([f"algo={name}", *SMALL, *rounds, *starts, "device=cuda"])
    train(config, tmp_path)
    assert len(read(tmp_path / "iterations.csv")) == 3
    state = checkpoint.load(tmp_path / "checkpoints" / "last.pt")
    again = make_algorithm(config, make_problem(config)[0])
    again.load_state_dict(state["algorithm"])
    assert (again.snapshot().vector == state["snapshot"]["vector"].numpy()).all()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_two_learners_are_one(tmp_path):
    rounds = ("total_steps=1536", "sampler.n=2", "eval.episodes=0", "logger.progress=quiet")
    for n in (1, 2):
        config = compose([*SMALL, *rounds, "device=cuda", f"learner.n={n}", "learner.shards=2"])
        train(config, tmp_path / str(n))
    one, two = (
        checkpoint.load(tmp_path / n / "checkpoints" / "last.pt")["snapshot"]["vector"]
        for n in ("1", "2")
    )
    assert one.equal(two)
