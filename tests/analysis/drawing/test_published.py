from __future__ import annotations

import pytest

from walle.analysis.drawing import published, style


def test_the_papers_times_are_in_seconds() -> None:
    rows = published.collection()
    assert rows.columns.tolist() == ["source", "n", "collect_s", "learn_s", "speedup"]
    trpo = rows[rows["source"] == published.FRANS_HAFNER].set_index("n")
    assert trpo.loc[5, "collect_s"] == 5.1
    assert trpo.loc[5, "speedup"] == pytest.approx(17.9 / 5.1)
    assert trpo["learn_s"].isna().all()
    walle = rows[rows["source"] == published.WALLE].set_index("n")
    assert walle.loc[20, "learn_s"] == pytest.approx(0.038 * 60)


def test_ticks_beyond_the_axis() -> None:
    _, (axes,) = style.panels(1, height=2.5)
    axes.set_xticks([1, 8], ["one", "eight"])
    published.extend_ticks(axes, published.collection())
    labels = [tick.get_text() for tick in axes.get_xticklabels()]
    assert labels == ["one", "eight", "10", "20"]


def test_another_size_of_iterations_is_said() -> None:
    assert published.caveat({20_000}) == []
    assert "the runs' have 2048:" in published.caveat({2048})[0]


def test_published_returns_of_a_task() -> None:
    assert set(published.returns("Hopper-v5", "ppo_kl")["task"]) == {"Hopper"}
    assert published.returns("NoSuchTask", "ppo").empty
