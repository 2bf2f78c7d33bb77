from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis import iteration_time, speedup
from walle.analysis.drawing import tasks
from walle.analysis.runs import load


def test_lines_stand_beside_their_ticks() -> None:
    places = {1: 1.0, 2: 2.0}
    assert tasks.aside(places, 0, 1) == places
    assert tasks.aside(places, 0, 2) == pytest.approx({1: 0.95, 2: 1.95})
    assert tasks.aside(places, 1, 2) == pytest.approx({1: 1.05, 2: 2.05})
    assert tasks.aside({1: 1.0, 16: 16.0, 2: 2.0}, 1, 2)[1] == pytest.approx(1 + 0.7 / 2 / 2)
    logs = tasks.aside({1: 1.0, 4: 4.0}, 1, 2, log=True)
    assert logs == pytest.approx({1: 4**0.05, 4: 4**1.05})


@pytest.mark.parametrize("script", [speedup, iteration_time])
def test_six_lines_are_two_in_each_of_three_panels(tmp_path: Path, script: object) -> None:
    jobs = [
        Job(n=n, seed=seed, env=env, algo=algo, iterations=4)
        for env in ("A-v0", "Bb-v0", "Ccc-v0")
        for algo in ("a2c", "ppo")
        for n in (1, 2)
        for seed in (0, 1)
    ]
    study = script.study(load(write_sweep(tmp_path / "s", jobs)))  # type: ignore[attr-defined]
    panels = study.figure.axes
    assert [area.get_title() for area in panels] == ["A-v0", "Bb-v0", "Ccc-v0"]
    for area in panels:
        names = {str(line.get_label()) for line in area.get_lines()}
        assert {"a2c (2 seeds)", "ppo (2 seeds)"} <= names
        marks = [line for line in area.get_lines() if line.get_marker() in "os"]
        places = [line.get_xdata()[0] for line in marks if len(line.get_xdata())]
        assert len(places) == len(set(places))  # no marker hides another one


def test_no_law_is_drawn_where_more_samplers_are_no_faster(tmp_path: Path) -> None:
    jobs = [Job(n=n, seed=seed, iterations=4) for n in (1, 2) for seed in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        set_columns(root / str(number), collect_s=1.0 + 0.1 * job.n + 0.01 * job.seed)
    study = speedup.study(load(root))
    (axes,) = study.figure.axes
    assert not any("law" in str(line.get_label()) for line in axes.get_lines())
    assert not [line for line in axes.get_lines() if len(line.get_xdata()) == 100]
    assert any("at its bound, 100% [" in text for text in study.sentences)
