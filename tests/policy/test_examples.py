"""The examples of docs/using_policies.md, as a user starts them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import use_policy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_examples_train_and_use_a_policy(tmp_path, capsys):
    quick = ["total_steps=512", "batch_size=256", "sampler.n=1", "logger.progress=quiet"]
    command = [sys.executable, str(ROOT / "examples/train_policy.py"), str(tmp_path / "run")]
    ran = subprocess.run([*command, *quick], capture_output=True, text=True, timeout=500)
    assert ran.returncode == 0, ran.stderr
    assert "ppo on CartPole-v1 with 1 samplers\n512 steps in" in ran.stdout
    use_policy.main(str(tmp_path / "run"))
    found = capsys.readouterr().out
    assert "<Policy of ppo on CartPole-v1 after 512 steps" in found
    assert found.count("20 episodes") == 2


@pytest.mark.parametrize("name", ["memory", "sac"])
def test_the_same_lines_serve_every_policy(trained, name, capsys):
    use_policy.main(str(trained(name)))
    assert "one episode: return" in capsys.readouterr().out


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "examples" / "walle.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # numbers would grow stale
    shortened = 0
    for cell in notebook.cells:  # the same at a small size
        steps, fewer = r"(total_steps|eval\.every)=(\d+)000", r"\1=\g<2>00"
        cell.source, count = re.subn(steps, fewer, cell.source)
        shortened += count
    assert shortened == 3
    client = NotebookClient(notebook, timeout=500, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel():
        for i, cell in enumerate(notebook.cells):
            client.execute_cell(cell, i)
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    text = "".join(output.get("text", "") for output in shown)
    assert "6 of 6 jobs are complete" in text
    assert text.count("50 episodes") == 6
    assert "sampler.m is not a setting; did you mean 'sampler.n'?" in text
    pictures = [key for output in shown for key in output.get("data", {}) if "image" in key]
    assert pictures == ["image/png", "image/gif"]
    nbformat.write(notebook, tmp_path / "executed.ipynb")
