"""What the backend of Ray refuses before it connects to anything."""

from __future__ import annotations

import pytest

from walle.launcher.settings import RayConf, SlurmConf, WalleLauncherConf, check_settings
from walle.launcher.workers.backends import make_backend
from walle.launcher.workers.ray_cluster import backend


@pytest.fixture(autouse=True)
def ray_is_installed(monkeypatch):
    monkeypatch.setattr(backend, "find_spec", lambda name: name)


@pytest.mark.parametrize(
    ("settings", "of_ray", "reason"),
    [
        ({"cores": [0]}, {}, "use hydra.launcher.ray.cores"),
        ({"gpus": ["0"]}, {}, "use hydra.launcher.ray.gpus"),
        ({"check_cores": True}, {}, "backend=ray runs jobs elsewhere: leave it out"),
        ({}, {"workers": 0}, "ray.workers=0: it must be at least 1"),
        ({}, {"heartbeat_s": 0}, "ray.heartbeat_s=0: it must be above 0"),
        ({}, {"address": "ray://head:10001"}, "Ray Client: run this on a node .*address=auto"),
        ({"wait": False}, {"address": None}, "wait=false with .*address=null, whose workers end"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, of_ray, reason):
    asked = WalleLauncherConf(backend="ray", ray=RayConf(**of_ray), **settings)
    check_settings(asked)
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
    monkeypatch.setattr(backend, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"backend=ray needs .*: pip install 'walle\[ray\]'"):
        make_backend(WalleLauncherConf(backend="ray"))


def test_a_dry_run_needs_no_cluster(app):
    asked = ("hydra.launcher.backend=ray", "hydra.launcher.dry_run=true")
    code, output = app.run("job=0,1", *asked)
    assert code == 0, output
    assert "in workers on the Ray cluster at auto" in output
    code, output = app.run("job=0", "hydra.launcher.backend=ray", "hydra.launcher.slurm.qos=x")
    assert code == 2
    assert output.strip() == (
        "hydra.launcher.slurm.qos=x has no effect with backend=ray: leave it out, or use "
        "hydra.launcher.backend=slurm"
    )
