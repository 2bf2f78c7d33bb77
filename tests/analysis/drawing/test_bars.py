from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis import iteration_time, speedup
from walle.analysis.drawing import bars, style
from walle.analysis.measuring.stats import Interval
from walle.analysis.runs import load


def arrows(axes: style.Axes) -> list[str]:
    return [str(line.get_marker()) for line in axes.get_lines() if line.get_marker() in ("^", "v")]


def test_an_interval_does_not_set_the_axis() -> None:
    axes = Figure().subplots()
    style.point(axes, 1, Interval(2.0, 0.1, 220.0), style.look(0))
    style.point(axes, 2, Interval(3.0, 2.9, 3.1), style.look(0), dots=[2.8, 3.2])
    style.from_zero(axes)
    assert axes.get_ylim() == (0, pytest.approx(3.2 * 1.12))
    bars.cut(axes)
    assert arrows(axes) == ["^"]
    assert axes.get_ylim()[1] == pytest.approx(3.2 * 1.12)


def test_a_bar_that_fits_is_drawn_whole() -> None:
    axes = Figure().subplots()
    style.point(axes, 1, Interval(2.0, 1.5, 2.5), style.look(0))
    style.point(axes, 2, Interval(2.0), style.look(0))  # no interval
    style.from_zero(axes)
    bars.cut(axes)
    assert arrows(axes) == []
    assert axes.get_ylim()[1] == pytest.approx(2.5 * 1.12)


def test_a_bar_is_cut_below_too() -> None:
    axes = Figure().subplots()
    style.point(axes, 1, Interval(2.0, -5, 2.1), style.look(0))
    style.from_zero(axes)
    bars.cut(axes)
    assert arrows(axes) == ["v"]


def test_two_seeds_that_disagree_leave_the_data_visible(tmp_path: Path) -> None:
    """The axis went to 220 with the data on the floor; each seed is a dot now."""
    jobs = [Job(n=n, seed=s, noise=0.0) for n in (1, 2) for s in (0, 1)]
    root = write_sweep(tmp_path / "s", jobs)
    for number, job in enumerate(jobs):
        set_columns(root / str(number), collect_s=(2.0 if job.seed else 6.0) / job.n)
    study = speedup.study(load(root))
    (axes,) = study.figure.axes
    style.finish(study.figure, None)
    assert study.table["speedup_high"].max() > 10
    assert axes.get_ylim()[1] < 5
    assert arrows(axes) == ["^"]
    dots = [line.get_ydata()[0] for line in axes.get_lines() if line.get_marker() == "."]
    assert dots == pytest.approx([4 / 6, 4 / 2, 4 / 3, 4 / 1])
    seconds = iteration_time.study(load(root)).figure.axes[0]
    dots = [line.get_ydata()[0] for line in seconds.get_lines() if line.get_marker() == "."]
    assert dots == pytest.approx([6, 2, 3, 1])
