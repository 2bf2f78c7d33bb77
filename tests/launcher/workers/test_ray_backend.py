"""What the backend of Ray refuses before it connects to anything."""

from __future__ import annotations

import pytest

from walle.launcher.launch import make_backend
from walle.launcher.settings import RayConf, SlurmConf, WalleLauncherConf, check_settings
from walle.launcher.workers import ray_backend
from walle.launcher.workers.ray_backend import Node, placements


@pytest.fixture(autouse=True)
def ray_is_installed(monkeypatch):
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: name)


@pytest.mark.parametrize(
    ("settings", "of_ray", "reason"),
    [
        ({"cores": [0]}, {}, "use hydra.launcher.ray.cores"),
        ({"gpus": ["0"]}, {}, "use hydra.launcher.ray.gpus"),
        ({"check_cores": True}, {}, "backend=ray runs jobs elsewhere: leave it out"),
        ({}, {"workers": 0}, "ray.workers=0 must be positive"),
        ({}, {"heartbeat_s": 1e10}, "ray.heartbeat_s=1.* must lie in"),
        ({}, {"address": "ray://head:10001"}, "Ray Client: run this on a node .*address=auto"),
        ({"wait": False}, {"address": None}, "wait=false with .*address=null, whose workers end"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, of_ray, reason):
    asked = WalleLauncherConf(backend="ray", ray=RayConf(**of_ray), **settings)
    with pytest.raises(ValueError, match=reason) as refused:
        make_backend(asked)
    assert "\n" not in str(refused.value)


def test_settings_of_the_other_scheduler_are_refused():
    for name in ("local", "ray"):
        why = rf"slurm\.partition=low has no effect with backend={name}"
        with pytest.raises(ValueError, match=why):
            check_settings(WalleLauncherConf(backend=name, slurm=SlurmConf(partition="low")))
    for name in ("local", "slurm"):
        with pytest.raises(ValueError, match=rf"ray\.workers=2 has no effect with backend={name}"):
            check_settings(WalleLauncherConf(backend=name, ray=RayConf(workers=2)))


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ray_backend, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"backend=ray needs .*: pip install 'walle\[ray\]'"):
        make_backend(WalleLauncherConf(backend="ray"))


@pytest.mark.slow
def test_a_dry_run_needs_no_cluster(app):
    asked = ("hydra.launcher.backend=ray", "hydra.launcher.dry_run=true")
    code, output = app.run("job=0,1", *asked)
    assert code == 0, output
    assert "in workers on the Ray cluster at auto" in output
    code, output = app.run("job=0", "hydra.launcher.backend=ray", "hydra.launcher.slurm.qos=x")
    assert code == 2
    assert output.strip() == (
        "walle: hydra.launcher.slurm.qos=x has no effect with backend=ray: leave it out, or use "
        "hydra.launcher.backend=slurm"
    )


BIG, BUSY, SMALL = Node("b", "big", 16, 16), Node("y", "busy", 32, 6), Node("s", "small", 4, 4)
NODES = (SMALL, BUSY, BIG)


def found(needs, nodes=NODES, *, compared=False, **settings):
    placed = placements(needs, nodes, RayConf(**settings), compared=compared)
    return [(cores, node and node.name) for cores, node in placed]


def test_one_worker_a_node_with_its_free_cores():
    assert found([1] * 100) == [(16, "big"), (6, "busy"), (4, "small")]


def test_a_job_that_takes_a_node_waits_for_a_whole_one():
    assert found([None] * 4, [BIG], workers=2) == [(16, "big"), (16, None)]
    assert found([None] * 2, [BIG], gpus=1) == [(16, None)]  # all GPUs are in use


def test_no_more_cores_than_the_jobs_need():
    assert found([1] * 18) == [(16, "big"), (2, "busy")]
    assert found([2, 2, 2]) == [(6, "big")]
    assert found([1]) == [(1, "big")]


def test_a_worker_has_room_for_the_largest_job():
    assert found([5] * 9) == [(16, "big"), (6, "busy")]
    assert found([1, 8]) == [(9, "big")]


def test_workers_of_a_size_that_was_asked_for():
    assert found([1] * 20, cores=4) == [(4, "big")] * 4 + [(4, "busy")]
    assert found([8, 8], cores=4) == [(4, "big")] * 2  # a job alone on too few cores


def test_a_number_of_workers_that_was_asked_for():
    assert found([1] * 100, workers=2) == [(16, "big"), (6, "busy")]
    assert found([1] * 100, workers=5)[3:] == [(1, None)] * 2  # these wait
    assert found([1, 1], workers=5) == [(2, "big"), (1, None)]  # no more than jobs


def test_one_worker_waits_where_no_node_is_free():
    assert found([4, 8], [SMALL]) == [(8, None)]
    assert found([1], []) == [(1, None)]


def test_jobs_that_are_compared_run_on_one_whole_node():
    assert found([1, 2, 4], compared=True) == [(16, "big")]
    assert found([1, 2, 4], compared=True, workers=2) == [(16, "big"), (4, "small")]
    assert found([1, 2, 4], [BUSY], compared=True) == [(32, "busy")]  # it waits for all cores


def test_jobs_that_take_all_cores_get_a_node_each():
    assert found([None] * 2) == [(16, "big"), (4, "small")]
    assert found([None] * 9) == [(16, "big"), (4, "small"), (32, "busy")]


def test_workers_with_gpus_need_nodes_with_free_gpus():
    one, three = BIG._replace(name="one", free_gpus=1), BIG._replace(name="three", free_gpus=3)
    assert found([1] * 99, [BIG, one, three], gpus=1) == [(16, "one"), (16, "three")]
    assert found([1] * 99, [one, three], gpus=1, cores=2) == [(2, "one")] + [(2, "three")] * 3
    assert found([1], [BIG], gpus=1) == [(1, None)]


@pytest.mark.parametrize("workers", [None, 1, 4])
def test_no_node_gives_more_than_it_has(workers):
    for jobs in range(1, 40):
        placed = placements([2] * jobs, NODES, RayConf(workers=workers), compared=False)
        assert 1 <= len(placed) <= jobs
        for node in NODES:
            here = [cores for cores, where in placed if where == node]
            assert sum(here) <= node.free_cores
        assert all(cores >= 2 for cores, _ in placed)
