from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.analysis.synthetic import Job, write_run, write_sweep
from walle.analysis import timeline
from walle.analysis.runs import BadInputError, load


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", Job(n=12, iterations=8, trace=True))


def spans(*rows: tuple[str, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["section", "start_s", "end_s"])


def test_shares_of_each_bin_by_hand() -> None:
    found = timeline.shares(
        spans(("act", 0.0, 0.5), ("env_step", 0.5, 1.5), ("act", 1.5, 1.75)), np.array([0, 1, 2.0])
    )
    np.testing.assert_allclose(found["act"], [0.5, 0.25])
    np.testing.assert_allclose(found["env_step"], [0.5, 0.5])


def test_shares_of_stays_much_shorter_than_a_bin() -> None:
    starts = np.arange(1000) / 1000
    rows = [(s, t, t + 0.0005) for t in starts for s in ("act",)]
    found = timeline.shares(spans(*rows), np.array([0, 0.5, 1]))
    np.testing.assert_allclose(found["act"], 0.5, rtol=1e-6)


def test_a_track_a_process_in_the_perfetto_trace(traced: Path) -> None:
    sweep = load(traced)
    rows = sweep.trace[sweep.trace["run"] == sweep.runs[0].name]
    rows = rows.astype({"process": str, "section": str}).sort_values("start_s")
    events = timeline.perfetto("run", rows)["traceEvents"]
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == ["agent", *(f"sampler-{k}" for k in range(12))]
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(rows)
    first = next(e for e in complete if e["tid"] == 0)
    row = rows[rows["process"] == "agent"].iloc[0]
    assert first["name"] == row["section"] == "wait_experience"
    assert first["cat"] == "wait"
    assert first["dur"] == pytest.approx((row["end_s"] - row["start_s"]) * 1e6)


def test_the_figure_opens_on_two_steady_iterations(traced: Path) -> None:
    sweep = load(traced)
    axes = timeline.study(sweep).figure.axes[0]
    start, end = axes.get_xlim()
    rows = sweep.iterations
    assert end - start == pytest.approx(2 * rows["iteration_s"].median(), rel=0.06)
    ends = rows["wall_s"].to_numpy()
    assert np.abs(ends - start).min() == pytest.approx(0, abs=1e-6)
    assert np.abs(ends - end).min() == pytest.approx(0, abs=1e-6)
    assert start >= ends[0] - 1e-6  # without the first iteration
    assert [t.get_text() for t in axes.get_yticklabels()][:2] == ["agent", "sampler-0"]


def test_it_opens_neither_on_compiling_nor_on_an_odd_iteration(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", Job())
    lengths = [9.0, 1.0, 1.0, 5.0, 1.0, 1.0, 1.0]  # compiles until 11.5, evaluates in the fourth
    ends = np.cumsum(lengths)
    rows = [f"{i + 1},{end},{s}" for i, (end, s) in enumerate(zip(ends, lengths, strict=True))]
    (run / "iterations.csv").write_text("iteration,wall_s,iteration_s\n" + "\n".join(rows) + "\n")
    spans = [("agent", "compile", 0.0, 10.5), ("agent", "update", 10.5, 19.0)]
    text = "\n".join(",".join(map(str, span)) for span in spans)
    (run / "trace.csv").write_text(f"process,section,start_s,end_s\n{text}\n")
    axes = timeline.study(load(run)).figure.axes[0]
    assert axes.get_xlim() == (16.0, 18.0)


def test_a_window(traced: Path) -> None:
    study = timeline.study(load(traced), start_s=1.0, end_s=2.0)
    per_process = study.table.groupby("process")["seconds"].sum()
    np.testing.assert_allclose(per_process, 1.0, rtol=0.05)


def test_a_window_of_which_one_end_is_given(traced: Path) -> None:
    sweep = load(traced)
    start, end = timeline.study(sweep).figure.axes[0].get_xlim()
    width = end - start
    for start, end, shown in ((0.5, None, (0.5, 0.5 + width)), (None, 2.0, (2.0 - width, 2.0))):
        axes = timeline.study(sweep, start_s=start, end_s=end).figure.axes[0]
        assert axes.get_xlim() == pytest.approx(shown)
    with pytest.raises(BadInputError, match=r"between .* and 0 s"):
        timeline.study(sweep, end_s=0.0)


def test_windows_that_make_no_sense(traced: Path) -> None:
    sweep = load(traced)
    with pytest.raises(BadInputError, match="the end must lie after the start"):
        timeline.study(sweep, start_s=2.0, end_s=1.0)
    with pytest.raises(BadInputError, match="nothing happened between 1000 and 2000 s"):
        timeline.study(sweep, start_s=1000.0, end_s=2000.0)


def test_the_first_run_with_a_trace_or_the_named_one(tmp_path: Path) -> None:
    jobs = [Job(), Job(seed=1, trace=True), Job(seed=2, trace=True)]
    sweep = load(write_sweep(tmp_path / "s", jobs))
    assert timeline.study(sweep).sentences[0].startswith("Run 1,")
    assert timeline.study(sweep, run="2").sentences[0].startswith("Run 2,")
    with pytest.raises(BadInputError, match="--run 0: the runs with a trace are"):
        timeline.study(sweep, run="0")


def test_without_a_trace(speedup_sweep: Path) -> None:
    with pytest.raises(BadInputError, match="make one with trace=true"):
        timeline.study(load(speedup_sweep))
