from __future__ import annotations

from walle.analysis.drawing import forest, style
from walle.analysis.measuring.stats import Interval


def drawn(**options: object) -> style.Axes:
    _, (axes,) = style.panels(1)
    of = {"a": Interval(2.0, 1.5, 900.0), "b": Interval(1.0), "overall": Interval(1.5, 1.4, 1.6)}
    series = [forest.Series("x", style.look(0), of)]
    forest.draw(axes, series, neutral=1.0, **options)  # type: ignore[arg-type]
    return axes


def test_a_wide_interval_does_not_set_the_axis_and_its_bar_ends_in_an_arrow() -> None:
    axes = drawn()
    assert axes.get_xlim()[1] < 5
    markers = [line.get_marker() for line in axes.get_lines()]
    assert markers.count(">") == 1
    assert markers.count("<") == 0
    assert markers.count("|") == 3  # both ends of `overall`, the lower one of `a`
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b", "overall"]


def test_ratios_have_a_logarithmic_axis_with_round_ticks() -> None:
    axes = drawn(ratio=True)
    assert axes.get_xscale() == "log"
    ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    assert "1" in ticks
    assert len(ticks) <= 6


def test_given_limits_hold() -> None:
    assert drawn(limits=(0.0, 3.0)).get_xlim() == (0.0, 3.0)
