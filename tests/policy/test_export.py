"""Exported policies, run by the libraries that others will run them with."""

import sys

import gymnasium as gym
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import walle
from tests.policy.conftest import RUNS
from walle.errors import ConfigError, WalleError
from walle.policy import export as module
from walle.policy.export import ActingModule, difference, export


@pytest.fixture
def policy(trained):
    return lambda name: walle.load(trained(name), "last", trust=True)


def within(policy, bounds):
    """The policy with other bounds of its actions."""
    return walle.Policy(
        policy.network, policy.snapshot, policy.obs_clip, policy.spec,
        policy.spaces._replace(action=bounds), policy.origin,
    )  # fmt: skip


def module_graph(policy):
    """The function that is exported, before it is."""
    acting = ActingModule(policy)

    def graph(obs, state):
        with torch.no_grad():
            if not policy.state_size:
                return acting(torch.from_numpy(obs)).numpy(), state
            found = acting(torch.from_numpy(obs), torch.from_numpy(state))
            return tuple(each.numpy() for each in found)

    return graph


@pytest.mark.parametrize("name", RUNS)
def test_the_exported_function_acts_as_the_policy(policy, name):
    found = policy(name)
    assert difference(found, module_graph(found)) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ppo", "memory", "sac", "discrete", "state_scale"])
def test_onnxruntime_acts_as_the_policy(policy, name, tmp_path):
    found = policy(name)
    assert export(found, tmp_path / "p.onnx") <= 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"))
    for rows in (1, 7):
        obs = np.random.default_rng(rows).normal(size=(rows, found.obs_dim)).astype(np.float32)
        inputs = {"obs": obs}
        if name == "memory":
            inputs["state"] = found.initial_state(rows)
        action, *rest = session.run(None, inputs)
        expected, state = found.act(obs, found.initial_state(rows))
        np.testing.assert_allclose(action, expected, atol=1e-5)
        for following in rest:
            np.testing.assert_allclose(following, state, atol=1e-5)
        assert len(rest) == (name == "memory")
    assert {file.name for file in tmp_path.iterdir()} == {"p.onnx"}
    about = {each.key: each.value for each in onnx.load(tmp_path / "p.onnx").metadata_props}
    assert (about["env"], about["env_steps"]) == (found.spec.id, "256")


@pytest.mark.parametrize("name", ["ppo", "memory"])
def test_torch_loads_the_exported_program(policy, name, tmp_path):
    found = policy(name)
    assert export(found, tmp_path / "p.pt2") <= 1e-5
    program = torch.export.load(tmp_path / "p.pt2").module()
    obs = torch.randn(5, found.obs_dim, generator=torch.Generator().manual_seed(0))
    inputs = (obs, torch.zeros(5, found.state_size)) if found.state_size else (obs,)
    result = program(*inputs)
    action = result[0] if found.state_size else result
    expected, _ = found.act(obs.numpy(), found.initial_state(5))
    np.testing.assert_allclose(action.numpy(), expected, atol=1e-5)


def test_the_normaliser_and_the_bounds_are_in_the_graph(policy):
    found = policy("ppo")
    vector = found.snapshot.vector.copy()
    vector[-6:] = [1, -2, 3, 0.1, 10, 5]
    found.snapshot = found.snapshot._replace(vector=vector)
    obs = np.random.default_rng(0).normal(size=(50, 3)) * 100
    fresh = walle.Policy(
        found.network, found.snapshot, found.obs_clip, found.spec, found.spaces, found.origin
    )
    assert difference(fresh, module_graph(fresh)) <= 1e-5
    assert not np.array_equal(fresh.act(obs), policy("ppo").act(obs))
    vector[: found.network.layout.size] *= 500
    wild = module_graph(found)(obs.astype(np.float32), None)[0]
    assert abs(wild).max() == 2  # Pendulum's bound


def test_a_first_action_is_added(policy):
    found = policy("discrete")
    found.spaces = found.spaces._replace(first_action=3)
    assert difference(found, module_graph(found)) == 0


def test_the_tolerance_is_a_share_of_large_actions(policy):
    found = within(policy("ppo"), gym.spaces.Box(-1000, 1000, (1,), np.float32))
    right = module_graph(found)
    assert difference(found, right) <= 1e-6
    largest = abs(right(np.full((1, 3), 9, np.float32), None)[0]).max()

    def wrong(obs, state):
        return right(obs, state)[0] + 1e-3 * largest, state

    assert difference(found, wrong) > 1e-4


def test_actions_in_half_precision_are_exported(policy, tmp_path):
    found = within(policy("ppo"), gym.spaces.Box(-1, 2, (1,), np.float16))
    action = found.act(np.zeros((1, found.obs_dim), np.float32))[0]
    assert action.dtype == np.float16
    # Half of the distance between two numbers from 1 to 2.
    assert export(found, tmp_path / "p.pt2") <= np.finfo(np.float16).eps / 2 + 1e-6


def test_a_file_that_differs_is_refused_and_an_earlier_one_kept(policy, tmp_path, monkeypatch):
    found = policy("discrete")
    monkeypatch.setattr(module, "difference", lambda *_: float("nan"))
    (tmp_path / "p.pt2").write_text("earlier")
    with pytest.raises(WalleError, match="would differ from the policy by nan"):
        export(found, tmp_path / "p.pt2")
    assert (tmp_path / "p.pt2").read_text() == "earlier"
    assert [*tmp_path.iterdir()] == [tmp_path / "p.pt2"]


def test_what_is_missing_is_named(policy, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ConfigError, match=r"missing \(onnxscript\); install walle\[export\]"):
        export(policy("discrete"), tmp_path / "p.onnx")
    with pytest.raises(ConfigError, match=r"the ending must be one of \.onnx, \.pt2"):
        export(policy("discrete"), tmp_path / "p.h5")


def test_the_command_exports(trained, tmp_path, monkeypatch, capsys):
    def walle_export(*arguments):
        monkeypatch.setattr(sys, "argv", ["walle export", *map(str, arguments)])
        return module.main(), capsys.readouterr()

    code, printed = walle_export(trained("discrete"), tmp_path / "new" / "a.pt2", "which=last")
    assert code == 0
    assert "last.pt>" in printed.out
    assert "differs from the policy by 0.0e+00 at most, on 1,000 observations" in printed.out
    code, printed = walle_export(trained("discrete"), tmp_path / "a.h5")
    assert (code, printed.err.count("\n")) == (2, 1)
    code, printed = walle_export("a.onnx", trained("discrete"))
    assert code == 2
    assert "first the run, then the file: walle export DIR a.onnx" in printed.err


def test_bounds_in_float32_are_inside_those_in_float64():
    low, high = np.array([-0.1, 0.3, -2.0, -np.inf]), np.array([0.7, 0.9, 2.0, np.inf])
    found = module._inside(low, high)
    assert [x.dtype for x in found] == [np.float32, np.float32]
    assert (found[0].astype(np.float64) >= low).all()
    assert (found[1].astype(np.float64) <= high).all()
    np.testing.assert_allclose(found, (low, high), rtol=1e-6)
    assert (found[0][2:].tolist(), found[1][2:].tolist()) == ([-2, -np.inf], [2, np.inf])
