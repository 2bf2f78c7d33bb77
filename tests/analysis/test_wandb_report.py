from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.synthetic import Job, write_sweep
from walle.agent.sinks import Speed, section, summary
from walle.analysis import wandb_report
from walle.analysis.runs import load


def blocks(spec: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [block for block in spec["spec"]["blocks"] if block["type"] == kind]


@pytest.mark.slow
def test_the_specification_needs_no_server(speedup_sweep: Path, tmp_path: Path) -> None:
    pytest.importorskip("wandb_workspaces")
    path = tmp_path / "spec.json"
    assert wandb_report.main([str(speedup_sweep), "-o", str(path), "--project", "scaling"]) == 0
    spec = json.loads(path.read_text())
    assert spec["project"] == "scaling"
    assert spec["title"] == "speedup"
    words = blocks(spec, "markdown-block")[0]["content"]
    assert "| collection | 16 |" in words
    assert "- Amdahl (4 points): serial fraction" in words
    (grid,) = blocks(spec, "panel-grid")
    panels = grid["metadata"]["panelBankSectionConfig"]["panels"]
    titles = [panel["config"]["chartTitle"] for panel in panels]
    assert "Return by wall clock" in titles
    assert "Share of learning" in titles
    assert {panel["config"]["groupBy"] for panel in panels} == {"sampler.value.n"}


def test_a_run_set_for_each_group_of_runs(tmp_path: Path) -> None:
    pytest.importorskip("wandb_workspaces")
    root = write_sweep(tmp_path / "s", [Job(), Job(n=2), Job(n=4)])
    for number, group in (("0", "first"), ("1", "second"), ("2", "second")):
        path = root / number / "run.json"
        content = json.loads(path.read_text())
        content["config"]["logger"] = {"name": "wandb", "group": group, "project": "mine"}
        path.write_text(json.dumps(content))
    sweep = load(root)
    assert wandb_report.wandb_groups(sweep) == ["first", "second"]
    spec = wandb_report.specification(
        wandb_report.build(sweep, entity="me", project="mine", by="sampler.n")
    )
    sets = blocks(spec, "panel-grid")[0]["metadata"]["runSets"]
    assert [found["name"] for found in sets] == ["first", "second"]
    assert "second" in json.dumps(sets[1]["filters"])


def test_a_run_of_a_sweep_without_a_name_is_in_the_group_that_it_told_wandb(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(), Job(n=2)])
    path = root / "0" / "status.json"
    status = json.loads(path.read_text())
    path.write_text(json.dumps(status | {"wandb": {"group": "2026-11-22/10-00-00"}}))
    assert wandb_report.wandb_groups(load(root)) == ["", "2026-11-22/10-00-00"]


def test_every_panel_shows_a_name_that_runs_log() -> None:
    shown = {name for _, x, y in wandb_report.CURVES for name in (x, y)} - {"env_steps"}
    for name in shown:
        group, _, column = name.partition("/")
        assert group == "eval" or section(column) == group
    row = dict.fromkeys(("iteration_s", "collect_s", "learn_s", "env_steps_per_s"), 1.0)
    speed = Speed()
    speed.add({**row, "compile_s": 0.0})
    logged = summary({"eval_mean": 1.0, **speed.means()})
    assert {name for _, name in wandb_report.BARS} <= logged.keys()


def test_without_speedup_the_reason_stands_there(lag_sweep: Path) -> None:
    text = wandb_report.findings(load(lag_sweep), "sampler.max_lag", 1)
    assert text.startswith("No speedup: --by sampler.max_lag")


def test_a_report_that_cannot_be_published_leaves_its_specification(
    speedup_sweep: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    reports = pytest.importorskip("wandb_workspaces.reports.v2")

    def no_network(report: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(reports.Report, "save", no_network)
    path = tmp_path / "spec.json"
    assert wandb_report.main([str(speedup_sweep), "-o", str(path), "--save", "--entity", "me"]) == 2
    assert "not published: no route to host; the specification is in" in capsys.readouterr().err
    assert json.loads(path.read_text())["entity"] == "me"


def test_save_needs_an_entity(speedup_sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        wandb_report.main([str(speedup_sweep), "--save"])
    assert caught.value.code == 2
    assert "--save needs --entity" in capsys.readouterr().err


def test_without_the_package_the_cure_is_named(
    speedup_sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("wandb_workspaces"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert wandb_report.main([str(speedup_sweep)]) == 2
    assert "pip install 'walle[wandb]'" in capsys.readouterr().err
