from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis import iteration_time, speedup
from walle.analysis.drawing import style
from walle.analysis.measuring.stats import Interval
from walle.analysis.runs import load
from walle.timing import AGENT_SECTIONS, SAMPLER_SECTIONS


def test_numbers_stand_at_their_size_and_words_in_a_row() -> None:
    assert style.axis_places([4, 1, 16, 4]) == {1: 1.0, 4: 4.0, 16: 16.0}
    assert style.axis_places([1, "null", 0]) == {0: 0.0, 1: 1.0, "null": 2.0}


def test_neighbouring_lines_differ_in_everything() -> None:
    looks = [style.look(i) for i in range(21)]
    assert len({(look.color, look.marker, look.dash) for look in looks}) == 21
    for one, next_ in itertools.pairwise(looks):
        assert not set(one) & set(next_)


def test_small_multiples_have_as_many_axes_as_asked_for() -> None:
    for count, widths in ((1, style.COLUMN_INCHES), (5, style.PAGE_INCHES)):
        figure, axes = style.panels(count, height=2.0)
        assert len(axes) == len(figure.axes) == count
        assert figure.get_figwidth() == widths


def test_a_panel_has_a_frame_on_two_sides_and_ticks_below_the_lines() -> None:
    with style.paper():
        _, (axes,) = style.panels(1, height=2.0)
        shown = {side for side, spine in axes.spines.items() if spine.get_visible()}
        assert shown == {"left", "bottom"}
        assert axes.get_axisbelow() is True


def test_ticks_and_scales() -> None:
    _, (axes,) = style.panels(1, height=2.5)
    axes.plot([1, 8], [2, 4])
    style.scale_axes(axes, {1: 1.0, 8.0: 8.0}, log=False, hollow=True)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "8"]
    assert axes.get_ylim() == (0, 4 * 1.12)
    assert axes.get_lines()[-1].get_label() == "more busy processes than cores"
    style.scale_axes(axes, {1: 1.0}, log=True, hollow=False)
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_every_name_is_in_the_legend_as_it_is() -> None:
    with style.paper():
        figure, (axes,) = style.panels(1, height=2.5)
        for label in ("_old", "cost$1$x", "_", "_nolegend_"):
            axes.plot([0, 1], label=label)
        axes.plot([0, 1])
        axes.bar(0, 1, label="_bar")
        style.legend(figure)
    texts = figure.legends[0].get_texts()
    assert [text.get_text().strip() for text in texts] == ["_old", "cost$1$x", "_bar"]
    assert not any(text.get_parse_math() for text in texts)


def test_wide_entries_of_a_legend_are_broken_into_lines() -> None:
    label = "learning_rate = 0.0003, minibatch_size 64, entropy_weight 0.01 (3 seeds)"
    with style.paper():
        figure, (axes,) = style.panels(1, height=2.5)
        axes.plot([0, 1], label="ppo")
        axes.plot([1, 0], label=label)
        style.legend(figure)
        assert style.rename(figure, {"ppo": f"Another {label} and more"}, None) == set()
        figure.canvas.draw()
        drawn = figure.legends[0].get_window_extent()
        texts = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert drawn.x0 >= 0
    assert drawn.x1 <= figure.bbox.width
    assert texts == [f"Another {label} and more", label]


def test_a_legend_of_many_rows_leaves_the_panels_their_height() -> None:
    def height_of_axes(entries: int) -> float:
        figure, (axes,) = style.panels(1, height=2.5)
        for i in range(entries):
            axes.plot(
                [0, 1], label=f"learning_rate = {i}e-4, minibatch_size 64, entropy_weight 0.01"
            )
        style.legend(figure)
        style.finish(figure, "A title of many words " * 6)
        style.resize(figure)
        figure.canvas.draw()
        title = figure._suptitle.get_window_extent()  # type: ignore[attr-defined]
        assert title.x0 >= 0
        assert title.x1 <= figure.bbox.width
        return float(axes.bbox.height)

    with style.paper():
        assert height_of_axes(12) > 0.8 * height_of_axes(3)


def test_small_numbers_on_a_compact_axis_are_written_out() -> None:
    with style.paper():
        _, (small, large) = style.panels(2, height=2.5)
        for axes, most in ((small, 0.8), (large, 2e6)):
            axes.plot([0, most], [0, 1])
            style.compact_axis(axes)
        texts = [
            axes.xaxis.get_major_formatter()(most / 2)
            for axes, most in ((small, 0.8), (large, 2e6))
        ]
    assert texts[1] == "1M"
    assert "m" not in texts[0]


def test_a_logarithmic_axis_has_no_formulas() -> None:
    with style.paper():
        figure, (axes,) = style.panels(1, height=2.5)
        axes.plot([1, 2], [2, 9])
        style.scale_axes(axes, {1: 1.0, 2: 2.0}, log=True, hollow=False)
        figure.canvas.draw()
    ticks = axes.yaxis.get_ticklabels(which="both")
    assert {"2", "5"} <= {tick.get_text() for tick in ticks}
    assert not any("$" in tick.get_text() for tick in ticks)


def test_sections_differ_in_grey_or_in_their_hatch() -> None:
    agent = tuple(set(AGENT_SECTIONS) - {"other"})
    for process in (SAMPLER_SECTIONS, agent, ("collect", "learn", "other")):
        for one, other in itertools.combinations(process, 2):
            (first, hatch), (second, other_hatch) = style.section(one), style.section(other)
            grey = [np.dot(to_rgb(color), (0.299, 0.587, 0.114)) for color in (first, second)]
            assert hatch != other_hatch or abs(grey[0] - grey[1]) > 0.1, (one, other)
    assert style.section("learn") == style.section("update")
    assert style.section("wait_gradients") == style.section("wait_policy")
    assert style.section("new_section") == style.section("other")


def arrows(axes: style.Axes) -> list[str]:
    return [str(line.get_marker()) for line in axes.get_lines() if line.get_marker() in ("^", "v")]


def test_an_interval_does_not_set_the_axis() -> None:
    axes = Figure().subplots()
    style.point(axes, 1, Interval(2.0, 0.1, 220.0), style.look(0))
    style.point(axes, 2, Interval(3.0, 2.9, 3.1), style.look(0), dots=[2.8, 3.2])
    style.from_zero(axes)
    assert axes.get_ylim() == (0, pytest.approx(3.2 * 1.12))
    style._cut_intervals(axes)
    assert arrows(axes) == ["^"]
    assert axes.get_ylim()[1] == pytest.approx(3.2 * 1.12)


def test_a_bar_that_fits_is_drawn_whole() -> None:
    axes = Figure().subplots()
    style.point(axes, 1, Interval(2.0, 1.5, 2.5), style.look(0))
    style.point(axes, 2, Interval(2.0), style.look(0))  # no interval
    style.from_zero(axes)
    style._cut_intervals(axes)
    assert arrows(axes) == []
    assert axes.get_ylim()[1] == pytest.approx(2.5 * 1.12)


def test_a_bar_is_cut_below_too() -> None:
    axes = Figure().subplots()
    style.point(axes, 1, Interval(2.0, -5, 2.1), style.look(0))
    style.from_zero(axes)
    style._cut_intervals(axes)
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
