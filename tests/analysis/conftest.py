from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.synthetic import Job, write_sweep


@pytest.fixture(scope="session")
def speedup_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """n = 1, 2, 4, 8, 16 with 3 seeds on 8 cores, 5% of the collection serial."""
    jobs = [Job(n=n, seed=seed) for n in (1, 2, 4, 8, 16) for seed in range(3)]
    return write_sweep(tmp_path_factory.mktemp("multirun") / "speedup", jobs)


@pytest.fixture(scope="session")
def lag_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lock-step, overlapped and free-running with 3 seeds."""
    jobs = [Job(n=4, seed=seed, max_lag=lag) for lag in (0, 1, None) for seed in range(3)]
    return write_sweep(tmp_path_factory.mktemp("multirun") / "lag", jobs)


@pytest.fixture(scope="session")
def tasks_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two environments, n = 1 and 4, 3 seeds."""
    jobs = [
        Job(n=n, seed=seed, env=env, iterations=20)
        for env in ("HalfCheetah-v5", "Hopper-v5")
        for n in (1, 4)
        for seed in range(3)
    ]
    return write_sweep(tmp_path_factory.mktemp("multirun") / "tasks", jobs)
