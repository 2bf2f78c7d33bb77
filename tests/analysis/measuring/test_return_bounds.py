from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from walle.analysis.loading.directories import Run, Scalar
from walle.analysis.measuring import return_bounds
from walle.analysis.measuring.stats import Interval


def run(**config: Scalar) -> Run:
    named = {key.replace("__", "."): value for key, value in config.items()}
    return Run(Path("0"), "0", {"env.id": "CartPole-v1", **named}, {}, {})


def test_returns_of_known_tasks_have_ends() -> None:
    assert return_bounds.of_returns([run()]) == (0, 500)
    assert return_bounds.of_returns([replace(run(), config={"env.id": "Pendulum-v1"})])[1] == 0
    unknown = replace(run(), config={"env.id": "Ant-v5"})
    assert return_bounds.of_returns([run(), unknown]) == return_bounds.ANY
    assert return_bounds.of_returns([]) == return_bounds.ANY
    assert return_bounds.of("return_round_mean", [run()]) == (0, 500)
    assert return_bounds.of("return_round_std", [run()]) == (0, math.inf)


def test_a_task_with_settings_of_its_own_is_not_the_table_s() -> None:
    assert return_bounds.of_returns([run(env__kwargs__gravity=1)]) == return_bounds.ANY
    assert return_bounds.of_returns([run(env__episode_limit=1000)]) == return_bounds.ANY
    assert return_bounds.of_returns([run(env__episode_limit="null")]) == (0, 500)


def test_an_interval_ends_where_values_are_impossible() -> None:
    assert Interval(243.5, -241.4, 728.4).within(0, 500) == (243.5, 0, 500)
    assert Interval(600, 500, 700).within(0, 500) == (600, 500, 600)  # the estimate stays inside
    assert math.isnan(Interval(3).within(0, 1).low)
    assert return_bounds.of_column("collect_share")[0] == pytest.approx(0)
