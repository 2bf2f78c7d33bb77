"""Runs on a Ray cluster end with the bits of runs on one machine, whatever happens to nodes."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache

import psutil
import pytest
import torch

from tests.conftest import read
from tests.sampling.cluster.processes import actors, fork_servers, samplers, wait_until
from walle.agent.checkpoint import earlier_state
from walle.config import compose
from walle.errors import ConfigError, WorkerError
from walle.sampling.cluster import sampling
from walle.sampling.cluster.sampling import RaySampling
from walle.training import train

pytestmark = pytest.mark.ray
AGENTS = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
TINY = (
    "eval.episodes=0",
    "logger.progress=lines",
    "batch_size=256",
    "sampler.lanes=8",
    "algo.epochs=2",
    "total_steps=1280",
    "env.episode_limit=50",
)
FAULTY = (*TINY, "env=halfcheetah", "batch_size=2048", "total_steps=16384", "algo.epochs=1")


@pytest.fixture(autouse=True)
def no_process_left():
    """Ray keeps idle workers; a node's actor and its samplers must have ended."""
    before = {process.pid for process in fork_servers()}
    yield
    wait_until(lambda: not actors() and {p.pid for p in fork_servers()} <= before, within_s=20)


@pytest.fixture(scope="module")
def cluster():
    """A head without cores, and three nodes, for all tests of this module: Ray starts slowly."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": 80_000_000}
    found = Cluster(True, head_node_args={**small, "num_cpus": 0, "include_dashboard": False})
    found.add = lambda: found.add_node(**small, num_cpus=1)
    try:
        for _ in range(3):
            found.add()
        yield found
    finally:
        found.shutdown()


@pytest.fixture(autouse=True, scope="module")
def quick_looks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("walle.sampling.cluster.members.LOOK_S", 0.2)
        yield


def hash_of(state):
    found = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            found.update(value.numpy().tobytes())
        elif isinstance(value, dict | list | tuple):
            for each in value.values() if isinstance(value, dict) else value:
                add(each)

    add(state)
    return found.hexdigest()


def results(directory):
    """All that a run learned: the parameters, and every column of every row but times."""
    state = torch.load(directory / "checkpoints" / "last.pt", weights_only=False)
    rows = [
        {k: v for k, v in row.items() if not k.endswith(("_s", "_share"))}
        for row in read(directory / "iterations.csv")
    ]
    return {"hash": hash_of(state["algorithm"]), "rows": rows}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The results of a run on this machine, made once."""

    @cache
    def found(*overrides):
        directory = tmp_path_factory.mktemp("reference")
        train(compose(list(overrides)), directory)
        return results(directory) | {"timing": read(directory / "timing.csv")[0].keys()}

    return found


@pytest.fixture
def ray_run(cluster, tmp_path):
    """Runs on the cluster; returns the directory."""

    def _run(*overrides):
        directory = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        train(compose([*overrides, "sampler=ray", f"sampler.address={cluster.address}"]), directory)
        return directory

    return _run


@pytest.fixture
def at_round(monkeypatch):
    """Calls functions while rounds are collected: after they were asked for, before they come."""
    hooks, receive = {}, RaySampling.receive

    def hooked(self):
        if hook := hooks.pop(self._round, None):
            hook(self)
        return receive(self)

    monkeypatch.setattr(RaySampling, "receive", hooked)
    return hooks


def nodes_of(directory):
    return json.loads((directory / "run.json").read_text())["nodes"]


def replacements(directory):
    return json.loads((directory / "status.json").read_text()).get("replacements", [])


@pytest.mark.parametrize(
    ("env", "lag", "nodes"),  # every pair of two values occurs
    [
        *(("halfcheetah", 0, 2), ("halfcheetah", 1, 1), ("halfcheetah", 1, 3)),
        *(("cartpole", 0, 1), ("cartpole", 0, 3), ("cartpole", 1, 2)),
    ],
)
def test_bits_do_not_depend_on_the_nodes(ray_run, reference, env, lag, nodes):
    overrides = (*TINY, f"env={env}")
    processes = reference(*overrides, "sampler.n=2", f"sampler.max_lag={lag}")
    more = "sampler.per_node=2" if nodes == 1 else "sampler.per_node=null"
    directory = ray_run(*overrides, f"sampler.max_lag={lag}", f"sampler.nodes={nodes}", more)
    found = results(directory)
    assert found["hash"] == processes["hash"]
    assert found["rows"] == processes["rows"]
    if not lag:
        assert found["hash"] == reference(*overrides, "sampler=serial")["hash"]
    timing = read(directory / "timing.csv")
    assert timing[0].keys() == processes["timing"]
    assert {row["process"] for row in timing} == {
        "agent",
        *(f"sampler-{i}" for i in range(max(2, nodes))),
    }
    (dealt,) = nodes_of(directory)
    assert len(dealt["nodes"]) == nodes
    assert {"name", "address", "samplers", "cpu_model", "cores"} <= dealt["nodes"][0].keys()


def test_killed_processes_leave_no_trace_in_the_results(ray_run, reference, at_round):
    """A sampler is replaced on its node; the lanes of a dead actor are collected elsewhere."""
    overrides = (*FAULTY, "sampler.max_lag=1")

    at_round[2] = lambda _: samplers()[0].send_signal(signal.SIGKILL)
    at_round[5] = lambda _: actors()[0].send_signal(signal.SIGKILL)
    directory = ray_run(*overrides, "sampler.nodes=2")
    assert results(directory)["hash"] == reference(*overrides, "sampler.n=2")["hash"]
    sampler, actor = replacements(directory)
    assert "of node" in sampler["sampler"]
    assert "SIGKILL" in sampler["why"]
    assert actor["sampler"].startswith("node ")
    assert actor["round"] in (5, 6)
    assert actor["exact"]


def test_rounds_of_whole_episodes_are_collected_elsewhere_too(ray_run, reference, at_round):
    overrides = (*TINY, "env=cartpole", "sampler.collect=episodes")
    at_round[2] = lambda _: actors()[0].send_signal(signal.SIGKILL)
    directory = ray_run(*overrides, "sampler.nodes=2")
    assert results(directory)["hash"] == reference(*overrides, "sampler.n=2")["hash"]
    # A short round may be collected before the signal arrives: then the next one is owed.
    assert replacements(directory)[0]["round"] in (2, 3)


def test_nodes_come_and_go(ray_run, reference, cluster, at_round):
    """A node is removed in the middle of a round, and another one is added."""

    def remove(_):
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        cluster.add()

    def until_it_takes_part(sampling):
        while len(sampling._members.live()) < 3:
            sampling._wait()

    at_round[2], at_round[5] = remove, until_it_takes_part
    directory = ray_run(*FAULTY)
    assert results(directory)["hash"] == reference(*FAULTY, "sampler.n=2")["hash"]
    first, *_, last = ({node["name"] for node in each["nodes"]} for each in nodes_of(directory))
    assert len(first) == len(last) == 3
    assert len(first & last) == 2  # one after the other, or at once


def test_the_late_answer_of_a_frozen_node_is_void(ray_run, reference, at_round, capfd):
    overrides, frozen = (*FAULTY, "sampler.max_lag=1"), []

    def freeze(_):
        frozen.append(actors()[0])
        frozen[0].suspend()

    def thaw_and_wait_until_it_is_back(sampling):
        frozen[0].resume()
        while len(sampling._members.live()) < 2:
            sampling._wait()

    at_round[2], at_round[5] = freeze, thaw_and_wait_until_it_is_back
    directory = ray_run(*overrides, "sampler.nodes=2", "sampler.timeout_s=4")
    assert results(directory)["hash"] == reference(*overrides, "sampler.n=2")["hash"]
    said = capfd.readouterr().out
    assert "has not answered for" in said
    assert "is void" in said


def test_a_run_goes_on_on_other_nodes(ray_run, reference, cluster):
    overrides = (*TINY, "env=halfcheetah", "schedule_steps=1280", "sampler.max_lag=1")
    unbroken = reference(*overrides, "sampler.n=2")
    directory = ray_run(*overrides, "total_steps=768", "sampler.nodes=2")
    config = compose(
        [*overrides, "sampler=ray", f"sampler.address={cluster.address}", "sampler.nodes=1"]
    )
    train(config, directory, resumed=earlier_state(directory, print))
    assert results(directory) == {name: unbroken[name] for name in ("hash", "rows")}
    assert [each["round"] for each in nodes_of(directory)] == [0, 3]


def test_a_node_that_computes_other_bits_is_refused_by_name(ray_run, monkeypatch, capfd):
    monkeypatch.setattr(sampling, "collected_here", lambda *_: "0123456789abcdef")
    with pytest.raises(ConfigError, match=r"node \S+:\w{6} computes other bits .*mismatch=warn"):
        ray_run(*TINY, "env=cartpole", "sampler.nodes=1")
    ray_run(*TINY, "env=cartpole", "sampler.nodes=1", "sampler.mismatch=warn", "total_steps=256")
    assert "results depend on the nodes" in capfd.readouterr().out


def test_an_environment_that_fails_ends_the_run_with_the_nodes_name(ray_run):
    failing = ("env=gym", "env.id=tests.toy:FailsOnce-v0", "+env.kwargs={how: exit, at: 120}")
    with pytest.raises(WorkerError, match=r"node \S+: .*exited with 7"):
        ray_run(*TINY, *failing, "sampler.nodes=1")


@pytest.mark.parametrize("own", [True, False])
def test_nothing_is_left_when_the_driver_is_killed(cluster, tmp_path, own):
    """With a Ray of the run's own, and with a running cluster, whose nodes stay."""
    where = [] if own else [f"sampler.address={cluster.address}", "sampler.nodes=1"]
    command = [sys.executable, "-m", "walle.run", *FAULTY, "sampler=ray", *where]
    command += ["total_steps=1e8", f"hydra.run.dir={tmp_path}/run"]
    rows, before = tmp_path / "run" / "iterations.csv", set(psutil.pids())
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as driver:
        wait_until(lambda: rows.exists() and rows.read_text().count("\n") > 2, within_s=90)
        started = [*psutil.Process(driver.pid).children(recursive=True), *actors()]
        started += [p for p in fork_servers() if p.pid not in before]
        driver.kill()
    assert len(started) > (6 if own else 2)
    for process in started:  # of which two of Ray's own would end only after a minute
        with suppress(psutil.Error):
            if AGENTS & set(process.cmdline()):
                process.kill()
    gone, left = psutil.wait_procs(started, timeout=500)
    everything = psutil.process_iter(["status"])
    alive = {p.pid for p in everything if p.info["status"] != psutil.STATUS_ZOMBIE}
    assert [p for p in left if p.pid in alive] == []  # Ray reaps late
    assert os.getpid() not in {process.pid for process in gone}
