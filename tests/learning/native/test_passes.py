"""Passes in C++ give the numbers of eager steps, and the same bits for any team."""

import math
import os
import platform
import shutil
import signal
import threading

import pytest
import torch

from tests.algos.on_policy.test_ppo import trained
from tests.algos.test_learning_together import round_of, vectors
from tests.learning.sharing.test_team import in_threads, nothing
from walle.algos.engines import has_policy
from walle.errors import WorkerDeathError
from walle.learning.adam import AdamState
from walle.learning.native import library, passes
from walle.learning.sharing.shared_team import SharedTeam, TeamMemory, get, put

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

ROUND = ("batch_size=512", "sampler.lanes=8", "algo.epochs=3")
SMALL = ("env=hopper", *ROUND, "algo.minibatch_size=64", "algo.learning_rate=3e-4")
LEARNED = "algo.log_std_end=null"  # noise
CASES = {
    "default": (),
    "noise is learned": (LEARNED,),
    "last minibatch smaller": ("algo.minibatch_size=100",),
    "one minibatch": ("algo.minibatch_size=512",),
    "less than a block": ("algo.minibatch_size=7",),
    "value clip": ("algo.value_clip=0.05",),
    "entropy bonus": ("algo.entropy_weight=0.05", LEARNED),
    "target KL": ("algo.target_kl=0.002", "algo.learning_rate=3e-3"),
    "tight clip": ("algo.clip=0.01", "algo.learning_rate=3e-3"),
    "no bound on the norm": ("algo.max_grad_norm=null",),
    "beta2": ("algo.adam_beta2=0.9", LEARNED),
    "relu": ("net.activation=relu",),
    "odd widths": ("net.policy_hidden=[50,3]", "net.critic_hidden=[33]"),
    "wide": ("net.policy_hidden=[70,100]", "net.critic_hidden=[256,17,40]"),
    "hidden layers of one unit": ("net.policy_hidden=[1,1]", "net.critic_hidden=[5,1]"),
    "one action": ("env=inverted_pendulum",),
    "no hidden layer": ("net.policy_hidden=[]", "net.critic_hidden=[]"),
    "discrete actions": ("env=cartpole", "algo.entropy_weight=0.01", LEARNED),
    "action values": (
        *("algo=pqn", "env=cartpole", "algo.minibatch_size=100"),
        "net.activation=critic_norm_relu",
    ),
    "normalised layers": ("net.activation=norm_relu", "net.policy_hidden=[50,3]"),
    "the critic's layers normalised": ("net.activation=critic_norm_relu",),
    "action values, relu": (
        *("algo=pqn", "env=acrobot", "algo.max_grad_norm=0.01"),
        *("learner.shards=2", "net.activation=relu"),
    ),
    "scale of the state": ("net.scale=state", "algo.entropy_weight=0.01", LEARNED),
    "normalised advantages, once": (
        "algo.normalize_advantages=true",
        "algo.recompute_advantages=false",
    ),
    "shards": ("learner.shards=4",),
    "uneven shards": ("learner.shards=3", "algo.minibatch_size=102"),
    "bound on the norm": ("algo.max_grad_norm=0.01",),
    "other keys for the critic": (
        *("env=gym", "env.id=tests.toy:Windy-v0", "learner.shards=2", "algo.minibatch_size=100"),
        *("env.policy_keys=[target,place]", "env.critic_keys=[place,wind]"),
    ),
    "wide observations and actions": (
        *("env=gym", "env.id=tests.toy:Wide-v0"),
        *("algo.normalize_rewards=false", "learner.shards=2"),
    ),
}


def copied(state):
    """A state that later updates do not change."""
    return {k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in state.items()}


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_are_those_of_eager_steps(case):
    check_against_eager_steps(case)


def check_against_eager_steps(case):
    torch.set_num_threads(1)
    algorithm, rollout = trained(1, *SMALL, *CASES[case], "algo.compile=true")
    before = copied(algorithm.state_dict())
    expected = algorithm.learn(*round_of(rollout, algorithm))
    eager, adam, drawn = algorithm.vector, algorithm.adam, algorithm.generator.get_state()
    algorithm.load_state_dict(copied(before))
    algorithm.warm_up()
    assert isinstance(algorithm.optimizer, passes.Passes)
    found = algorithm.learn(*round_of(rollout, algorithm))
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=2e-4, abs=2e-5)
    assert not eager.equal(before["vector"])
    torch.testing.assert_close(algorithm.vector, eager, atol=2e-5, rtol=0)
    torch.testing.assert_close(algorithm.adam.mean, adam.mean, atol=1e-5, rtol=1e-3)
    torch.testing.assert_close(algorithm.adam.square, adam.square, atol=1e-6, rtol=1e-3)
    assert algorithm.adam.steps == adam.steps
    assert algorithm.generator.get_state().equal(drawn)  # also where passes end early
    if case == "target KL":
        assert found["gradient_steps"] < 24


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are x86's")
@pytest.mark.parametrize("flag", ["-mno-avx512f", "-mno-avx"])
@pytest.mark.parametrize("case", ["odd widths", "less than a block", "value clip", "one action"])
def test_narrower_vectors_give_the_numbers_too(flag, case, monkeypatch):
    monkeypatch.setenv("CXX", f"g++ {flag}")
    monkeypatch.setattr(
        library, "compiled", library.compiled.__wrapped__
    )  # the other one is loaded
    check_against_eager_steps(case)


PASSES = {
    "epochs": 1,
    "minibatch_size": 64,
    "learning_rate": 1e-3,
    "generator": torch.Generator(),
    "recompute": True,
}


def improved(algorithm, experience, **settings):
    """Passes of the algorithm's library over a round."""
    state = AdamState.zeros_like(algorithm.vector)
    settings = PASSES | settings
    return algorithm.optimizer.improve(algorithm.vector, state, experience, **settings)


@pytest.mark.parametrize("correction", ["none", "truncated", "vtrace"])
@pytest.mark.parametrize("normalized", ["true", "false"])
def test_the_estimates_are_those_of_the_critic(correction, normalized):
    settings = (f"algo.correction={correction}", f"algo.normalize_advantages={normalized}")
    algorithm, rollout = trained(1, *SMALL, *settings, "algo.compile=true")
    experience = round_of(rollout, algorithm).experience
    assert experience.ended[:-1].any()
    if correction != "none":
        ratio = torch.linspace(0.5, 1.5, experience.reward.numel())
        experience = experience._replace(ratio=ratio.view_as(experience.reward))
    expected = algorithm.batch(experience, algorithm.vector)
    algorithm.warm_up()
    learned = improved(algorithm, experience, learning_rate=0.0)
    value, advantage, target = found = torch.empty(3, len(expected.value))
    algorithm.optimizer.estimate(found, None)
    torch.testing.assert_close(value, expected.value, atol=2e-6, rtol=0)
    torch.testing.assert_close(advantage, expected.advantage, atol=2e-5, rtol=0)
    torch.testing.assert_close(target, expected.target, atol=1e-5, rtol=0)
    torch.testing.assert_close(learned.target, expected.target, atol=1e-5, rtol=0)


SHARDS = ("learner.shards=4",)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (SHARDS, (2, 3, 4)),
        ((*SHARDS, *CASES["target KL"]), (2, 3, 4)),
        ((*SHARDS, *CASES["last minibatch smaller"]), (2, 3, 4)),
        ((*SHARDS, *CASES["action values"]), (2, 3)),
        ((*SHARDS, *CASES["action values"], "net.policy_hidden=[16]"), (2, 3)),
    ],
    ids=str,
)
def test_the_bits_do_not_depend_on_the_number_of_learners(options, sizes):
    torch.set_num_threads(1)
    options = (*SMALL, *options, "algo.compile=true")

    def learner(rank, memory, data):
        algorithm = made[rank]
        if memory is not None:
            algorithm.join(SharedTeam(rank, memory, "cpu", nothing))
        algorithm.warm_up()
        for _ in range(2):
            metrics = algorithm.learn(*data())
        return vectors(algorithm.state_dict()), metrics

    made = [trained(0, *options)[0]]
    _, rollout = trained(0, *options)
    whole = round_of(rollout, made[0])
    expected, numbers = learner(0, None, lambda: whole)
    for size in sizes:
        made = [trained(0, *options)[0] for _ in range(size)]
        memory = TeamMemory(size)
        places = put(memory.round, whole)
        shared = lambda: get(memory.round, places, "cpu")  # noqa: B023, E731
        for found, metrics in in_threads(size, lambda rank: learner(rank, memory, shared)):  # noqa: B023
            for name, tensor in found.items():
                assert tensor.equal(expected[name]), name
            assert metrics == pytest.approx(numbers, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize("field", ["reward", "ratio", "log_prob", "action", "states"])
@pytest.mark.parametrize("correction", ["truncated", "vtrace"])
def test_what_is_no_number_reaches_the_parameters(field, correction):
    options = (f"algo.correction={correction}", "algo.target_kl=null", "algo.compile=true")
    algorithm, rollout = trained(0, *SMALL, *options)
    experience = round_of(rollout, algorithm).experience
    experience = experience._replace(ratio=torch.ones_like(experience.reward))
    algorithm.warm_up()
    getattr(experience, field)[3, 4] = math.nan
    assert improved(algorithm, experience).result.vector.isnan().any()


def test_a_ratio_that_overflows_gives_the_numbers_of_eager_steps():
    algorithm, rollout = trained(0, *SMALL, "algo.target_kl=null", "algo.compile=true")
    experience = round_of(rollout, algorithm).experience
    experience.log_prob[3, 4], experience.reward[3, 4] = -1000, -100
    start = algorithm.vector, AdamState.zeros_like(algorithm.vector), experience
    eager = algorithm.improve(*start, **(PASSES | {"minibatch_size": 512})).result.vector
    algorithm.warm_up()
    found = improved(algorithm, experience, minibatch_size=512).result.vector
    assert eager.isfinite().all()
    torch.testing.assert_close(found, eager, atol=2e-5, rtol=0)


def test_a_signal_while_a_learner_waits_is_heard():
    algorithm, rollout = trained(0, *SMALL, "learner.shards=2", "algo.compile=true")
    experience = round_of(rollout, algorithm).experience
    algorithm.warm_up()
    algorithm.optimizer.team = SharedTeam(0, TeamMemory(2), "cpu", nothing)
    interrupt = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        improved(algorithm, experience)
    interrupt.join()


def test_more_threads_are_for_pytorch():
    torch.set_num_threads(2)
    try:
        assert not has_policy(trained(0, *SMALL)[0])
    finally:
        torch.set_num_threads(1)
    assert has_policy(trained(0, *SMALL)[0])


def test_a_learner_that_waits_in_vain_raises_what_broke_the_team():
    algorithm, rollout = trained(0, *SMALL, "learner.shards=2", "algo.compile=true")
    experience = round_of(rollout, algorithm).experience
    algorithm.warm_up()

    def while_waiting():
        raise WorkerDeathError("learner-1 was killed")

    algorithm.optimizer.team = SharedTeam(0, TeamMemory(2), "cpu", while_waiting)
    with pytest.raises(WorkerDeathError, match="learner-1 was killed"):
        improved(algorithm, experience)


@pytest.mark.parametrize(
    ("field", "dtype", "message"),
    [
        (
            "reward",
            torch.float64,
            r"expected contiguous torch\.float32 on the CPU, got torch\.float64",
        ),
        ("ended", torch.int8, r"expected contiguous torch\.bool on the CPU, got torch\.int8"),
    ],
)
def test_numbers_of_another_type_are_refused(field, dtype, message):
    algorithm, rollout = trained(0, *SMALL, "algo.compile=true")
    experience = round_of(rollout, algorithm).experience
    algorithm.warm_up()
    other = getattr(experience, field).to(dtype)
    with pytest.raises(TypeError, match=message):
        improved(algorithm, experience._replace(**{field: other}))


@pytest.mark.parametrize("override", ["net=gru", "net.activation=elu"])
def test_other_losses_are_compiled_from_their_code(override):
    assert not has_policy(trained(0, *SMALL, override)[0])


@pytest.mark.parametrize("times", [0, 2])
@pytest.mark.parametrize("field", ["vector", "mean", "square", "steps"])
def test_a_state_of_another_length_is_refused(field, times):
    algorithm, rollout = trained(0, *SMALL, "algo.compile=true")
    experience = round_of(rollout, algorithm).experience
    algorithm.warm_up()
    state = {"vector": algorithm.vector, **algorithm.adam.state_dict()}
    state[field] = state[field].repeat(times)
    vector, adam = state.pop("vector"), AdamState(**state)
    with pytest.raises(ValueError, match="expected the shape"):
        algorithm.optimizer.improve(vector, adam, experience, **PASSES)


@pytest.mark.parametrize(
    "field",
    ["states", "needs_final_obs", "action", "reward", "continues", "ended", "log_prob"],
)
def test_a_round_of_another_length_is_refused(field):
    algorithm, rollout = trained(0, *SMALL, "algo.compile=true")
    experience = round_of(rollout, algorithm).experience
    algorithm.warm_up()
    shorter = getattr(experience, field)[1:]
    with pytest.raises(ValueError, match="expected the shape"):
        improved(algorithm, experience._replace(**{field: shorter}))
