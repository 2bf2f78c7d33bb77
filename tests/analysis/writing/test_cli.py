"""The command lines: from any directory, by path and as modules, with good and bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.analysis.synthetic import Job, write_run, write_sweep
from walle.analysis import (
    across_tasks,
    compare,
    iteration_time,
    lag,
    published_returns,
    report,
    returns,
    speedup,
    time_percentage,
    timeline,
    wandb_report,
)
from walle.analysis.runs import fingerprint, load

ROOT = Path(__file__).resolve().parents[3]
Main = Callable[[list[str]], int]
FIGURES: dict[str, Main] = {
    "speedup": speedup.main,
    "iteration_time": iteration_time.main,
    "time_percentage": time_percentage.main,
    "returns": returns.main,
    "lag": lag.main,
    "compare": compare.main,
}
ALL: dict[str, Main] = {
    **FIGURES,
    "timeline": timeline.main,
    "across_tasks": across_tasks.main,
    "published_returns": published_returns.main,
    "report": report.main,
    "wandb_report": wandb_report.main,
}


@pytest.fixture
def here(tmp_path: Path, speedup_sweep: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the sweep in ./multirun, and nothing else."""
    shutil.copytree(speedup_sweep, tmp_path / "multirun" / "speedup")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", FIGURES)
def test_without_an_argument_the_newest_sweep_is_taken_and_named(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FIGURES[name]([]) == 0
    out = capsys.readouterr().out
    assert out.startswith("multirun/speedup (the newest sweep)")
    figure = {"iteration_time": "collect_time"}.get(name, name)
    assert f"figure:  multirun/speedup/figures/{figure}.png" in out
    assert "15 of 15 runs used." in out
    assert re.search(r"\([1-9] more notes?: --notes\)", out) or "SHA-256" in out
    figures = here / "multirun" / "speedup" / "figures"
    assert (figures / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
    assert len(pd.read_csv(figures / f"{figure}.csv")) > 0


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_ending_names_the_format(ending: str, here: Path) -> None:
    assert iteration_time.main(["-o", f"out/figure.{ending}", "--csv", "n.csv"]) == 0
    start = Path(f"out/figure.{ending}").read_bytes()[:200]
    assert {"png": b"PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending] in start
    assert Path("n.csv").is_file()
    assert not Path("out/figure.csv").exists()


def test_the_same_data_give_the_same_bytes(here: Path) -> None:
    for name in ("a.svg", "b.svg"):
        assert speedup.main(["-o", name]) == 0
    assert Path("a.svg").read_bytes() == Path("b.svg").read_bytes()


def test_all_notes_are_printed_when_asked_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = here / "multirun" / "speedup" / "manifest.json"
    notes = ["Core 1 was slow.", "Other programs ran."]
    file.write_text(json.dumps({"launches": [{"machine": {"notes": notes}}]}))
    assert speedup.main([]) == 0
    short = capsys.readouterr().out
    assert "Core 1 was slow. (" in short
    assert "Other programs ran." not in short
    assert speedup.main(["--notes"]) == 0
    whole = capsys.readouterr().out
    assert "Core 1 was slow.\nOther programs ran.\nWarm-up: the first" in whole
    assert f"SHA-256 of all run.json: {fingerprint(load(file.parent).runs)}." in whole


def test_a_title(here: Path) -> None:
    assert speedup.main(["-o", "a.svg"]) == 0
    assert speedup.main(["-o", "b.svg", "--title", "Sixteen samplers"]) == 0
    assert "Sixteen samplers" not in Path("a.svg").read_text()
    assert "Sixteen samplers" in Path("b.svg").read_text()


@pytest.mark.parametrize("name", ALL)
def test_no_sweep_is_one_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ALL[name]([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"{name}: no sweep under ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "figure.jpg"], ["'figure.jpg' has to end in .png"]),
        (["--warmup", "-1"], ["is not a whole number of at least 0"]),
        (["--warmup", "one"], ["'one' is not a whole number"]),
    ],
)
def test_flags_that_make_no_sense(
    arguments: list[str], words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        speedup.main(arguments)
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words)


def test_a_place_that_cannot_be_written_to(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert speedup.main(["-o", "file/figure.png"]) == 2
    assert "choose another path with -o" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words", "kept"),
    [
        ("returns", ["-o", "RUN/iterations.png"], "RUN/iterations.csv"),
        ("speedup", ["-o", "index.svg"], "index.csv"),
        ("report", ["-o", "index.html"], "index.csv"),
        ("report", ["--csv", "RUN/run.json"], "RUN/run.json"),
    ],
)
def test_no_file_of_a_run_or_a_sweep_is_replaced(
    name: str, words: list[str], kept: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = here / "multirun" / "speedup"
    (sweep / "index.csv").write_text("job\n")
    (sweep / "manifest.json").write_text("{}")
    run = next(path.parent for path in sweep.rglob("run.json"))
    there = [word.replace("RUN", str(run)) for word in words]
    there = [str(sweep / word) if word.startswith("index") else word for word in there]
    file = sweep / kept.replace("RUN", str(run))
    before = file.read_bytes()
    assert ALL[name]([str(sweep), *there]) == 2
    assert "is a file of a run or a sweep, and would be replaced" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert not Path(there[1]).exists() or Path(there[1]) == file


def test_failures_are_named_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Job(), Job(n=2), Job(n=4, state="failed", status={"signal": "SIGKILL"})]
    root = write_sweep(tmp_path / "sweep", jobs)
    assert speedup.main([str(root)]) == 0
    out = capsys.readouterr().out
    assert "2 of 3 runs used." in out
    assert "Left out: 2: failed: signal SIGKILL." in out


def test_learning_has_a_figure_of_its_own(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert iteration_time.main(["--of", "learn"]) == 0
    assert "figure:  multirun/speedup/figures/learn_time.png" in capsys.readouterr().out


def test_a_timeline_writes_its_trace_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", Job(trace=True))
    assert timeline.main([str(run)]) == 0
    assert (run / "figures" / "timeline.json").read_text().startswith('{"traceEvents"')
    assert "Perfetto trace: " in capsys.readouterr().out


def test_show_says_when_there_is_no_viewer(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert iteration_time.main(["--show", "-o", "a.png"]) == 0
    assert "--show: no viewer found" in capsys.readouterr().err


@pytest.mark.slow
def test_by_its_path_and_as_a_module_from_any_directory(here: Path) -> None:
    by_path = [sys.executable, str(ROOT / "analysis" / "iteration_time.py")]
    as_module = [sys.executable, "-m", "analysis.iteration_time"]
    outputs = []
    for command, path in ((by_path, ""), (as_module, str(ROOT))):
        environment = {**os.environ, "PYTHONPATH": path}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
    assert "figure:  multirun/speedup/figures/collect_time.png" in outputs[0]


FLAGS = ("-o", "--csv", "--title", "--show")
WITHOUT = {  # flags that mean nothing to a script
    "across_tasks": ["--warmup"],
    "plan": ["--by"],
    "published_returns": ["--by", "--warmup"],
    "returns": ["--warmup"],
    "timeline": ["--by", "--warmup"],
}


@pytest.mark.parametrize("name", ALL)
def test_help_shares_its_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        ALL[name](["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert [flag for flag in FLAGS if flag not in said] == []
    lacking = [flag for flag in ("--by", "--warmup") if f"{flag} " not in said]
    assert lacking == WITHOUT.get(name, [])


def test_a_script_answers_from_any_directory(tmp_path: Path) -> None:
    script = str(ROOT / "analysis" / "report.py")
    said = subprocess.run(
        [sys.executable, script, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith("usage: report.py")


@pytest.mark.slow
@pytest.mark.parametrize("script", ["speedup", "report"])
def test_a_reader_of_the_output_may_leave(script: str, here: Path) -> None:
    line = f"{sys.executable} {ROOT}/analysis/{script}.py | true; exit ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys, walle.analysis.speedup, walle.analysis.report\n"
        "print([m for m in ('matplotlib', 'scipy', 'torch', 'wandb') if m in "
        "sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_what_was_left_out_is_said_where_nothing_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Job(n=1), Job(n=2, state="failed", status={"error": "X: y"})]
    root = write_sweep(tmp_path / "s", jobs)
    assert speedup.main([str(root)]) == 2
    err = capsys.readouterr().err
    assert "needs runs that differ in sampler.n, but these have sampler.n=1. 1 of 2 runs " in err
    assert "used. Left out: 1: failed: X: y." in err


def test_what_a_baseline_leaves_out_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_sweep(tmp_path / "s", [Job()])
    failed = Job(n=2, state="failed", status={"error": "X: y"})
    baseline = write_sweep(tmp_path / "b", [Job(), failed])
    command = [str(root), "--baseline", str(baseline)]
    assert returns.main(command) == 0
    said = "Baseline: 1 of 2 runs used.\nBaseline: Left out: 1: failed: X: y.\n"
    assert said in capsys.readouterr().out
    assert returns.main([*command, "-y", "typo"]) == 2
    err = capsys.readouterr().err
    assert "Baseline: 1 of 2 runs used. Baseline: Left out: 1: failed: X: y." in err


@pytest.mark.slow
def test_a_run_whose_rows_are_all_broken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_sweep(tmp_path / "s", [Job(n=1), Job(n=2), Job(n=4), Job(n=4, seed=1)])
    (root / "2" / "iterations.csv").write_bytes(b"\xff\xfe\n\x80\n\x81\n")
    file = root / "3" / "iterations.csv"
    header = file.read_text().splitlines()[0]
    file.write_text(header + "\n" + ",".join(["word"] * (header.count(",") + 1)) + "\n")
    for script in FIGURES.values():
        assert script([str(root)]) == 0
    assert "broken rows of iterations.csv left out" in capsys.readouterr().out


@pytest.mark.slow
def test_a_figure_for_a_paper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [Job(algo=algo, seed=s, iterations=5) for algo in ("ppo", "trpo") for s in (0, 1)]
    root, file = write_sweep(tmp_path / "s", jobs), tmp_path / "f.svg"
    command = [str(root), "--by", "algo=ppo,trpo", "--width", "85mm", "-o", str(file)]
    assert compare.main([*command, "--labels", "ppo=PPO", "trpo=TRPO", "--xlabel", "ratio"]) == 0
    text = file.read_text()
    assert 'width="240.94' in text  # points
    assert "<!-- ratio -->" in text  # of every axis
    assert "TRPO" not in text
    assert compare.main([*command, "--labels", "ppo=PPO", "trpo=TRPO"]) == 0
    assert "<!-- speed, TRPO / PPO -->" in file.read_text()
    capsys.readouterr()
    assert compare.main([*command, "--labels", "pqo=PPO"]) == 2
    assert "--labels pqo=PPO: not in the figure: 'pqo'; write OLD=NEW" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare.main([*command, "--width", "8.5cm"])
    assert "'8.5cm' is not a whole number of at least 30" in capsys.readouterr().err
