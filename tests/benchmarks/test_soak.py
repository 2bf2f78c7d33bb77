"""A run survives the death of any of its processes: five of the soak's kills."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_kills(tmp_path):
    command = [sys.executable, str(ROOT / "benchmarks" / "soak.py"), "--kills", "5"]
    command += ["total_steps=8192", "eval.every=3072", "checkpoint.every=2048"]
    said = subprocess.run(
        [*command, "--json", "found.json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stdout + said.stderr
    kills = json.loads((tmp_path / "found.json").read_text())["kills"]
    assert len(kills) == 5
    assert sum(kill["victim"] == "agent" for kill in kills) == 1
    assert sum(kill["late"] for kill in kills) == 2
    assert all(kill["same"] for kill in kills)
