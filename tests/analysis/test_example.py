from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_runs(speedup_sweep: Path, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "analyse_sweep.py"), str(speedup_sweep)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "collect_s" in run.stdout
    assert "Amdahl" in run.stdout
    assert (tmp_path / "my_speedup.png").is_file()
