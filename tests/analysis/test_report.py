from __future__ import annotations

import base64
import html
import json
import math
import os
import re
import shutil
import subprocess
from contextlib import ExitStack
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import REPLACED, Job, keep_rows, write_run, write_sweep
from walle.analysis import report
from walle.analysis.measuring.groups import axis_of
from walle.analysis.runs import load
from walle.analysis.writing import panel
from walle.system.locks import locked_file

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
VOID = {"meta", "img", "source", "br", "hr", "link"}


class Checker(HTMLParser):
    """Fails on tags that do not match; collects addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.addresses += [v or "" for k, v in attrs if k in ("href", "src", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def check(text: str) -> Checker:
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    return checker


@pytest.fixture(scope="module")
def speedup_page(speedup_sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "r.html"
    assert report.main([str(speedup_sweep), "-o", str(path), "--paper"]) == 0
    return path


@pytest.fixture(scope="module")
def lag_page(lag_sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "r.html"
    assert report.main([str(lag_sweep), "-o", str(path), "--question", "How fast?"]) == 0
    return path


@pytest.fixture(autouse=True)
def same_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --watch the process takes the lowest priority, which later tests would inherit."""
    monkeypatch.setattr(os, "nice", lambda _: 0)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page without its figures, which take seconds."""
    monkeypatch.setattr(report, "sections", lambda *_, **__: {})


def test_the_page_is_whole_and_needs_no_other_file(speedup_page: Path) -> None:
    text = speedup_page.read_text()
    pictures = [a for a in check(text).addresses if a.startswith("data:image/svg+xml;base64,")]
    assert len(pictures) == 8  # four figures, for a wide and for a narrow screen
    assert not any(a.startswith("http") for a in check(text).addresses)
    for words in (
        "Speedup of sampler.n=8 over sampler.n=1: collection ",
        "Amdahl",
        "15 of 15 runs used.",
        "cpu model",
        "OMP_NUM_THREADS",
        "SHA-256",
    ):
        assert words in text
    assert speedup_page.with_suffix(".csv").read_text().count("\n") == 16


def test_links_lead_to_the_runs(speedup_page: Path) -> None:
    addresses = check(speedup_page.read_text()).addresses
    links = [a for a in addresses if not a.startswith("data:")]
    assert len(links) == 15
    assert all((speedup_page.parent / link / "run.json").is_file() for link in links)


@pytest.mark.usefixtures("undrawn")
def test_no_name_of_a_run_leads_elsewhere(tmp_path: Path) -> None:
    names = ("javascript:alert(1)", "a#b", "q?x=1", "100%41", "<b>", "two\nlines", "x..")
    for seed, name in enumerate(names):
        write_run(tmp_path / "s #1" / name, Job(seed=seed))
    page = tmp_path / "pages" / "r#.html"
    assert report.main([str(tmp_path / "s #1"), "-o", str(page)]) == 0
    links = [a for a in check(page.read_text()).addresses if not a.startswith("data:")]
    assert len(links) == len(names)
    for link in links:
        there = urlsplit(urljoin(page.as_uri(), link))
        assert (there.scheme, there.query, there.fragment) == ("file", "", "")
        assert (Path(unquote(there.path)) / "run.json").is_file()


@pytest.mark.usefixtures("undrawn")
def test_a_failure_is_told_with_its_cause_not_with_the_note(tmp_path: Path) -> None:
    traceback = 'Traceback (most recent call last):\n  File "a.py", line 3, in step\n    go()\n'
    error = (
        f"WorkerError: sampler-0 failed:\n{traceback}ValueError: too hot\nraised by A in lane 3\n"
    )
    failed = Job(n=4, state="failed", status={"error": error})
    text = report.build(load(write_sweep(tmp_path / "s", [Job(), failed])))
    assert "<td>failed: WorkerError: sampler-0 failed: ValueError: too hot</td>" in text
    assert "raised by" not in text


@pytest.mark.usefixtures("undrawn")
def test_failures_and_their_reasons(tmp_path: Path) -> None:
    killed = Job(n=4, state="failed", status={"error": "MemoryError: <no> room"})
    text = report.build(load(write_sweep(tmp_path / "s", [Job(), Job(n=2), killed])))
    check(text)
    assert "2 of 3 runs used." in text
    assert "MemoryError: &lt;no&gt; room" in text


@pytest.mark.usefixtures("undrawn")
def test_replaced_processes_have_a_table(tmp_path: Path) -> None:
    lived = report.build(load(write_sweep(tmp_path / "lived", [Job()])))
    assert "Replaced processes" not in lived
    jobs = [Job(), Job(n=2, status={"attempts": 2, "replacements": [REPLACED]})]
    text = report.build(load(write_sweep(tmp_path / "s", jobs)), home=tmp_path)
    check(text)
    row = '<a href="s/1">1</a></td><td>sampler-1</td><td>12</td><td>2026-01-02T03:04:06+00:00</td>'
    assert f"{row}<td>was killed by &lt;SIGKILL&gt;</td>" in text
    assert "1 of 2 runs replaced a dead sampler or learner (1)" in text


@pytest.mark.usefixtures("undrawn")
def test_the_run_to_start_from_is_named(tmp_path: Path) -> None:
    write_sweep(tmp_path / "s", [Job(iterations=1)])
    path = tmp_path / "s/0/run.json"
    parent = {"checkpoint": "/a/checkpoints/best.pt", "env_steps": 4096}
    path.write_text(json.dumps({**json.loads(path.read_text()), "parent": parent}))
    text = report.build(load(tmp_path / "s"))
    assert "<td>parent</td><td>checkpoint /a/checkpoints/best.pt, env_steps 4096</td>" in text


@pytest.mark.usefixtures("undrawn")
def test_a_machine_that_was_not_quiet_is_told(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", [Job(iterations=1)])
    notes = ["The cores were unequal.", "The machine was not quiet."]
    launches = [{"machine": {"notes": notes[:1]}}, {}, {"machine": {"notes": notes}}]
    (sweep / "manifest.json").write_text(json.dumps({"launches": launches}))
    text = report.build(load(sweep))
    assert [text.count(note) for note in notes] == [1, 1]
    (sweep / "manifest.json").write_text('{"launches": [3]}')
    assert "says of the machine cannot be read" in report.build(load(sweep))


@pytest.mark.slow
def test_what_cannot_be_drawn_is_said(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "s", [Job(iterations=1), Job(n=2, iterations=1)])
    for run in "01":
        (sweep / run / "episodes.csv").unlink()
    text = report.build(load(sweep), warmup=0)
    check(text)
    assert "<h2>Final scores" not in text
    assert '"return_mean"' not in text  # of the panel's choices
    assert '"training_return"' not in text


def test_the_question_is_put_together_from_what_varies(
    speedup_sweep: Path, lag_sweep: Path, tasks_sweep: Path
) -> None:
    assert report.ask(load(speedup_sweep), "sampler.n") == (
        "How do the results of ppo on HalfCheetah-v5 depend on sampler.n (1, 2, 4, 8, 16)? 3 seeds."
    )
    assert report.ask(load(tasks_sweep), "sampler.n") == (
        "How do the results of ppo depend on sampler.n (1, 4) and env.id (HalfCheetah-v5, "
        "Hopper-v5)? 3 seeds."
    )
    assert axis_of(load(lag_sweep)) == "sampler.max_lag"


@pytest.mark.slow
def test_final_scores_evaluations_and_the_comparison(tmp_path: Path) -> None:
    jobs = [Job(algo=a, env=e, seed=s) for a in ("a2c", "ppo") for e in "xy" for s in (0, 1)]
    sweep = load(write_sweep(tmp_path / "s", jobs))
    text = report.build(sweep)
    check(text)
    assert '<p class="answer">Final score on x: ' in text  # both learnt the same
    titles = re.findall("<h2>(.*?)</h2>", text)
    assert titles[:2] == ["Curves", "Comparison"]
    assert titles[-1] == "Caveats"
    assert "A is algo.name=a2c (4 runs), B is algo.name=ppo (4 runs)." in text
    assert "<th>evaluation</th><th>training</th>" in text


def test_a_run_without_a_score_is_said(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=seed) for seed in range(3)])
    (root / "2" / "episodes.csv").write_text("env_steps,lane,return\n")
    table, texts = report.final_score_table(load(root), "sampler.n")
    assert table["seeds"].tolist() == [3]
    assert "Column training, HalfCheetah-v5: 2 of 3 runs have a value." in texts


def test_a_running_run_changes_no_final_score(tmp_path: Path) -> None:
    sizes = {"batch_size": 100, "iterations": 40}, {"batch_size": 200, "iterations": 20}
    jobs = [Job(**size, seed=seed) for size in sizes for seed in range(2)]
    root = write_sweep(tmp_path / "s", [*jobs, Job(**sizes[1], seed=2, state="running")])
    keep_rows(root / "4", 5)
    table, _ = report.final_score_table(load(root), "batch_size")
    assert table["seeds"].tolist() == [2, 2]
    assert table["evaluation"].notna().all()
    status = json.loads((root / "0/status.json").read_text()) | {"state": "running"}
    for i in range(4):
        (root / f"{i}/status.json").write_text(json.dumps(status))
    assert report.final_score_table(load(root), "batch_size")[0]["seeds"].tolist() == [2, 3]


def test_a_lone_score_is_named_if_another_line_has_none(tmp_path: Path) -> None:
    jobs = [Job(batch_size=size, seed=seed) for size in (100, 200) for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for i in (2, 3):
        (root / f"{i}/eval.csv").unlink()
        (root / f"{i}/episodes.csv").write_text("env_steps,lane,return\n")
    table, _ = report.final_score_table(load(root), "batch_size")
    assert table["line"].tolist() == ["batch_size = 100"]


def test_runs_of_different_lengths_have_scores_of_their_own(tmp_path: Path) -> None:
    jobs = [Job(n=n, seed=s) for n in (1, 2) for s in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for i in (2, 3):  # learnt the same, on other numbers of samplers, and shorter
        for file in ("iterations", "episodes", "eval"):
            shutil.copy(root / str(i - 2) / f"{file}.csv", root / str(i) / f"{file}.csv")
    assert report.final_score_table(load(root), "sampler.n")[0]["seeds"].tolist() == [2]
    for i in (2, 3):
        keep_rows(root / str(i), 15)
    assert report.final_score_table(load(root), "sampler.n")[0]["seeds"].tolist() == [2, 2]


@pytest.mark.slow
def test_no_sentence_stands_twice(speedup_page: Path, lag_page: Path) -> None:
    for page in (speedup_page, lag_page):
        said = re.findall(r"<li>(.*?)</li>", page.read_text())
        assert len(said) == len(set(said)) > 5


def test_numbers_of_samplers_are_no_comparison(speedup_page: Path, lag_page: Path) -> None:
    assert "<h2>Comparison</h2>" not in speedup_page.read_text()
    assert "A is sampler.max_lag=0" in lag_page.read_text()


def test_a_question_of_ones_own(lag_page: Path) -> None:
    assert "How fast?" in lag_page.read_text()
    assert "How do the results" not in lag_page.read_text()


def test_lists_are_compared(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(seed=s) for s in range(4)])
    for number, hidden in enumerate([[64, 64], [64, 64], [128, 128], [128, 128]]):
        path = root / str(number) / "run.json"
        run = json.loads(path.read_text())
        run["config"]["net"] = {"hidden": hidden}
        path.write_text(json.dumps(run))
    found = report.sections(load(root), "sampler.n", warmup=1, paper=False)
    sentences = found["Comparison"](load(root)).sentences
    assert "A is net.hidden=[128, 128] (2 runs), B is net.hidden=[64, 64] (2 runs)." in sentences


def test_the_figures_suit_the_sweep(lag_sweep: Path, tmp_path: Path) -> None:
    found = report.sections(load(lag_sweep), "sampler.max_lag", warmup=1, paper=False)
    assert "Policy lag" in found
    assert "Speedup" not in found
    jobs = [Job(trace=True, max_lag=lag) for lag in (0, 0, 1)]
    traced = load(write_sweep(tmp_path / "s", jobs))
    titles = list(report.sections(traced, "sampler.n", warmup=1, paper=False))
    assert titles[-2:] == ["Timeline, max_lag 0", "Timeline, max_lag 1"]


def panel_of(text: str) -> dict[str, Any]:
    """The data of the page's panel."""
    (found,) = re.findall(r'<script type="application/json" class="panel">(.*?)</script>', text)
    data: dict[str, Any] = json.loads(found)
    return data


def numbers(data: dict[str, Any], run: int, column: str) -> list[float]:
    return np.frombuffer(base64.b64decode(data["columns"][run][column]), "<f4").tolist()


@pytest.mark.usefixtures("undrawn")
def test_the_panel_has_every_column_of_every_run(tmp_path: Path) -> None:
    jobs = [Job(seed=0), Job(seed=1, status={"state": "interrupted"}), Job(algo="a2c", cores=2)]
    sweep = load(write_sweep(tmp_path / "s", jobs))
    data = panel_of(report.build(sweep))
    rows = sweep.iterations[sweep.iterations["run"] == "0"]
    assert {"kl", "eval return_std", "round_steps", "learn_s"} <= set(data["options"]["y"])
    assert list(data["options"]["x"]) == ["env_steps", "iteration", "wall_s", "core_s"]
    assert (data["first"]["y"], data["first"]["by"]) == ("eval return_mean", "algo.name")
    assert data["keys"]["algo.name"] == ["ppo", "ppo", "a2c"]
    assert (data["off"], data["states"][1]) == (["1"], "interrupted")
    values, steps = numbers(data, 0, "learn_s"), numbers(data, 0, "env_steps")
    known = [k for k, value in enumerate(values) if value == value]
    assert [values[k] for k in known] == pytest.approx(rows["learn_s"])
    assert [steps[k] for k in known] == list(rows["env_steps"])
    wall_s, core_s = numbers(data, 2, "wall_s"), numbers(data, 2, "core_s")
    assert core_s == pytest.approx([2 * seconds for seconds in wall_s])
    evaluated = [v for v in numbers(data, 2, "eval return_mean") if v == v]
    mine = sweep.evaluations[sweep.evaluations["run"] == "2"]
    assert evaluated == pytest.approx(mine["return_mean"])


@pytest.mark.usefixtures("undrawn")
def test_long_runs_are_thinned_and_keep_their_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(panel, "MOST", 300)
    text = report.build(load(write_sweep(tmp_path / "s", [Job(n=n) for n in (1, 2)])))
    assert re.search("Of [0-9]+ iterations one is drawn, and every evaluation", text)
    values = numbers(panel_of(text), 0, "eval return_mean")
    assert len(values) < 20
    assert sum(value == value for value in values) == 3
    learned = numbers(panel_of(text), 0, "learn_s")
    assert sum(value == value for value in learned) == len(values) - 3 > 0
    assert learned[-2] == learned[-2]  # the last iteration, before the evaluation at the end


@pytest.mark.usefixtures("undrawn")
def test_a_single_run_has_a_question_and_an_answer(tmp_path: Path) -> None:
    text = report.build(load(write_run(tmp_path / "s", Job())))
    assert "What are the results of ppo on HalfCheetah-v5? 1 seed." in text
    assert '<p class="answer">Final score on HalfCheetah-v5: ' in text


def test_the_answer_names_the_best_and_the_next(tmp_path: Path) -> None:
    ends = {"training": [1.0, 3.0, 2.0], "training_low": 0.5, "training_high": 4.0}
    ends["evaluation"] = math.nan  # of another task
    finals = pd.DataFrame({"task": "x", "line": ["a", "b", "c"], **ends})
    sweep = load(write_sweep(tmp_path / "s", [Job(algo="a2c"), Job()]))
    (text,) = report.answers(sweep, "algo.name", 1, finals)
    assert text == "Best final score on x: 3 [0.5, 4] (b), next 2 [0.5, 4] (c)."


def test_a_speedup_is_over_another_number_of_workers(tmp_path: Path) -> None:
    few = [Job(n=n, seed=s, cores=1) for n in (1, 2, 4) for s in (0, 1)]
    sweep = load(write_sweep(tmp_path / "few", few))
    (text,) = report.answers(sweep, "sampler.n", 1, pd.DataFrame())
    start = "Speedup of sampler.n=4 over sampler.n=1, more busy processes than cores: collection "
    assert text.startswith(start)
    lone = [Job(n=n, seed=s) for n in (1, 2) for s in (0, 1)] + [Job(algo="a2c")]
    sweep = load(write_sweep(tmp_path / "lone", lone))
    (text,) = report.answers(sweep, "sampler.n", 1, pd.DataFrame())
    assert text.startswith("Speedup of sampler.n=2 over sampler.n=1, ppo: collection ")


@pytest.mark.usefixtures("undrawn")
def test_watching_writes_the_page_until_the_launcher_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, pages, file = tmp_path / "s", [], tmp_path / "s/report.html"
    write_run(root / "0", Job(iterations=2, state="running"))
    keep_rows(root / "0", 0)  # no iteration yet
    lock = ExitStack()
    lock.enter_context(locked_file(root / ".launcher.lock"))

    def sleep(seconds: float) -> None:
        assert seconds >= report.RELOAD_S
        pages.append(file.read_text() if file.exists() else "")
        if len(pages) == 1:
            write_run(root / "0", Job(iterations=2, state="running"))
        if len(pages) == 2:
            write_run(root / "0", Job(iterations=4))
            lock.close()

    monkeypatch.setattr(report.time, "sleep", sleep)
    assert report.main([str(root), "--watch"]) == 0
    assert "no complete iteration yet" in capsys.readouterr().err
    assert pages[0] == ""
    assert '<body data-reload="20">' in pages[1]
    assert "data-reload" not in file.read_text().partition("<script>")[0]
    assert len(numbers(panel_of(file.read_text()), 0, "env_steps")) == 4


def test_an_interrupt_ends_the_watch_while_the_page_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    write_run(tmp_path / "0", Job(iterations=2, state="running"))
    monkeypatch.setattr(report, "_write", interrupted)
    with locked_file(tmp_path / ".launcher.lock"), pytest.raises(SystemExit) as ended:
        report.main([str(tmp_path), "--watch"])
    assert ended.value.code == 130
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("undrawn")
def test_watching_what_does_not_exist_is_an_error(tmp_path: Path) -> None:
    assert report.main([str(tmp_path / "typo"), "--watch"]) == 2


@pytest.mark.slow
def test_a_key_that_counts_no_workers_has_neither_speedup_nor_ideal(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", [Job(max_lag=lag, seed=s) for lag in (0, 1) for s in (0, 1)])
    text = report.build(load(root))
    check(text)
    assert "<h2>Speedup</h2>" not in text
    assert "<h2>Collection time</h2>" in text
    assert "Not drawn" not in text


def browsed(page: Path, script: str, width: int, *flags: str) -> str:
    """The title that a script sets: a browser without network shows the page in a frame `f`."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium here")
    frame = page.with_name("frame.html")
    frame.write_text(
        f"<iframe id=f src={page.name} width={width} height=800></iframe>"
        "<script>onload = async () => { try { const d = f.contentDocument;"
        f"{script} }} catch (error) {{ document.title = error.stack; }} }}</script>"
    )
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    switches += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=20000"]
    switches += ["--host-resolver-rules=MAP * ~NOTFOUND", *flags, "--dump-dom", frame.as_uri()]
    command = [browser, *switches]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    title = re.search(r"<title>(.+?)</title>", run.stdout)
    assert title, run.stdout[:2000]
    return html.unescape(title.group(1))


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_no_screen_scrolls_sideways(lag_page: Path, tmp_path: Path, width: int) -> None:
    """A browser lays the page out in a frame of this width and says how wide it became."""
    shutil.copy(lag_page, tmp_path / "r.html")
    script = (
        "const e = d.documentElement, images = [...d.images];"
        "document.title = [e.scrollWidth, e.clientWidth,"
        "images.filter(i => i.complete && i.naturalWidth > 0).length, images.length,"
        "Math.max(...images.map(i => i.getBoundingClientRect().right))].join(' ')"
    )
    scroll, client, drawn, images, right = map(
        float, browsed(tmp_path / "r.html", script, width).split()
    )
    assert scroll <= client
    assert drawn == images > 4
    assert right <= width


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_panel_follows_clicks_and_choices(tmp_path: Path) -> None:
    """In a dark browser: a run hides, the mean follows, other numbers are drawn and pointed at."""
    jobs = [Job(algo=a, seed=s) for a in ("a2c", "ppo") for s in (0, 1, 2)]
    page = tmp_path / "r.html"
    page.write_text(report.build(load(write_sweep(tmp_path / "s", jobs))))
    script = """
      const chart = d.querySelector(".chart"), window_ = f.contentWindow, seen = {};
      const wait = () => new Promise(done => setTimeout(done, 1500));
      const names = of => chart.data.filter(t => t.name && t.visible === of).map(t => t.name);
      await wait();
      seen.before = names(true);
      const entry = [...d.querySelectorAll(".legend .traces")].find(
        e => e.textContent === "seed 1").querySelector(".legendtoggle");
      for (const type of ["mousedown", "mouseup"])
        entry.dispatchEvent(new window_.MouseEvent(type, { bubbles: true }));
      await wait();
      seen.hidden = names("legendonly");
      seen.after = names(true);
      for (const [id, value] of [["y", "learn_s"], ["x", "core_s"], ["by", "seed"]]) {
        d.getElementById(id).value = value;
        d.getElementById(id).dispatchEvent(new Event("change"));
      }
      await wait();
      seen.axes = [chart.layout.xaxis.title.text, chart.layout.yaxis.title.text];
      const seed = chart.data.findIndex(t => t.meta[0] === 0);
      window_.Plotly.Fx.hover(chart, [{ curveNumber: seed, pointNumber: 3 }]);
      await wait();
      seen.pointed = d.querySelector(".hovertext").textContent;
      await new Promise(done => { f.onload = done; window_.location.reload(); });
      const choice = f.contentDocument.getElementById("y");
      seen.kept = [choice.value, f.contentWindow.location.hash.includes("off=1")];
      seen.background = getComputedStyle(f.contentDocument.body).backgroundColor;
      seen.requests = f.contentWindow.performance.getEntriesByType("resource").length;
      document.title = JSON.stringify(seen);
    """
    seen = json.loads(browsed(page, script, 1280, "--blink-settings=preferredColorScheme=0"))
    assert seen["before"] == ["mean of 3", "seed 0", "seed 1", "seed 2"] * 2
    assert seen["hidden"] == ["seed 1"]
    assert seen["after"] == ["mean of 2", "seed 0", "seed 2", *seen["before"][4:]]
    assert seen["axes"] == ["core-seconds", "learn_s"]
    assert "0: a2c" in seen["pointed"]
    assert seen["kept"] == ["learn_s", True]
    assert (seen["background"], seen["requests"]) == ("rgb(18, 18, 18)", 0)
