from __future__ import annotations

import itertools

import numpy as np
from matplotlib.colors import to_rgb

from walle.analysis.drawing import style
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
        figure, axes = style.small_multiples(count, height=2.0)
        assert len(axes) == len(figure.axes) == count
        assert figure.get_figwidth() == widths


def test_ticks_and_scales() -> None:
    _, (axes,) = style.panels(1)
    axes.plot([1, 8], [2, 4])
    style.scale_axes(axes, {1: 1.0, 8.0: 8.0}, log=False, hollow=True)
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "8"]
    assert axes.get_ylim() == (0, 4 * 1.12)
    assert axes.get_lines()[-1].get_label() == "more busy processes than cores"
    style.scale_axes(axes, {1: 1.0}, log=True, hollow=False)
    assert axes.get_xscale() == axes.get_yscale() == "log"


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
