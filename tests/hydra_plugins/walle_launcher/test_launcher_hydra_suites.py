"""Hydra's own suites for third-party launchers."""

import pytest
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)


@pytest.mark.parametrize(("launcher_name", "overrides"), [("walle", [])])
class TestLauncher(LauncherTestSuite):
    pass


@pytest.mark.parametrize(
    ("launcher_name", "overrides"),
    [("walle", ["hydra/sweeper=basic", "hydra.sweeper.max_batch_size=2"])],
)
class TestBatches(BatchedSweeperTestSuite):
    pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task_launcher_cfg", "extra_flags"), [({}, ["-m", "hydra/launcher=walle"])]
)
class TestIntegration(IntegrationTestSuite):
    pass
