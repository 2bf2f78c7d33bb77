"""The plugin's start-up, which every start of any Hydra application pays for."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_plugin_loads_no_heavy_module():
    heavy = {"optuna", "torch", "numpy", "sqlalchemy", "walle.tuning.sweep"}
    code = f"import hydra_plugins.walle_optuna.sweeper, sys; print({heavy} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
