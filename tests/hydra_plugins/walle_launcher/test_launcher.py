"""The plugin: its start-up, and Hydra's own suites for third-party launchers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.test_utils.launcher_common_tests import (
    BatchedSweeperTestSuite,
    IntegrationTestSuite,
    LauncherTestSuite,
)
from hydra.version import VersionBase, __compat_version__

ROOT = Path(__file__).resolve().parents[3]


def test_the_plugin_loads_no_heavy_module():
    heavy = {"torch", "numpy", "rich", "pandas", "cloudpickle", "walle.launcher.launch"}
    code = f"import hydra_plugins.walle_launcher.launcher, sys; print({heavy} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


@pytest.fixture(autouse=True)
def _hydras_default_version(hydra_restore_singletons):
    """The suites expect jobs to run in their directories, as they did before Hydra 1.2.

    Composing walle's configuration in an earlier test of this process says otherwise.
    """
    VersionBase.instance().setbase(__compat_version__)


@pytest.mark.slow
@pytest.mark.parametrize(("launcher_name", "overrides"), [("walle", [])])
class TestLauncher(LauncherTestSuite):
    pass


@pytest.mark.slow
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
    @pytest.fixture(autouse=True)
    def _find_the_plugin(self, monkeypatch):
        """The applications of this suite are processes that start in another directory."""
        monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
