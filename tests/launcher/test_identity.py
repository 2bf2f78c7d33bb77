from __future__ import annotations

import pytest

from walle.launcher.identity import (
    ConfigChangedError,
    Identity,
    assign_numbers,
    common_part,
    difference,
    refuse_other_base,
)
from walle.system.identity import comparable_leaves, config_hash, flatten


def job(num=-1, *overrides, **config):
    return Identity(num, overrides, config_hash(config), config)


def test_flatten_leaves_out_what_is_ignored():
    config = {"a": {"b": 1, "c": {}}, "d": [{"e": 2}], "name": "x", "f": {"name": "y"}}
    assert flatten(config, ["name"]) == {"a.b": 1, "a.c": {}, "d": [{"e": 2}], "f.name": "y"}


def test_references_to_variables_stay_as_they_were_written():
    written = {"a": "${oc.env:A}", "b": ["x", "${oc.env:B}"], "c": "${a}", "d": 1}
    resolved = {"a": "hush", "b": ["x", "hush"], "c": "plain", "d": 1}
    assert comparable_leaves(resolved, written, ()) == {**written, "c": "plain"}


def test_the_hash_sees_values_and_not_their_order():
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    assert config_hash({"a": 1}) != config_hash({"a": "1"})
    assert len(config_hash({})) == 16


def test_what_configs_have_in_common():
    assert common_part([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1}]) == {"a": 1}
    assert common_part([]) == {}


def test_a_difference_names_both_sides():
    before, after = {"a": 1, "b": None, "c": 0}, {"a": 2, "b": None, "d": "x"}
    assert difference(before, after) == ["a: 1 -> 2", "c: 0 -> (absent)", 'd: (absent) -> "x"']


def test_new_jobs_get_the_numbers_after_the_known_ones():
    known = [job(0, "n=1", n=1), job(1, "n=2", n=2)]
    wanted = [job(-1, "n=2", n=2), job(-1, "n=4", n=4), job(-1, "n=1", n=1)]
    assert assign_numbers(known, wanted) == [1, 2, 0]


def test_an_empty_directory_is_numbered_from_where_the_sweeper_says():
    assert assign_numbers([], [job(-1, "n=1", n=1), job(-1, "n=2", n=2)], 5) == [5, 6]


def test_the_same_config_written_otherwise_is_the_same_job():
    known = [job(0, "n=1", n=1, seed=0)]
    assert assign_numbers(known, [job(-1, "n=1", "seed=0", n=1, seed=0)]) == [0]


def test_two_equal_jobs_of_one_launch_get_two_numbers():
    assert assign_numbers([], [job(-1, "n=1", n=1), job(-1, "+n=1", n=1)]) == [0, 1]


def test_the_same_overrides_with_another_config_are_refused():
    known = [job(3, "env=hopper", env="hopper", gamma=0.99)]
    with pytest.raises(ConfigChangedError, match=r"(?s)job 3 \(env=hopper\).*gamma: 0.99 -> 0.9"):
        assign_numbers(known, [job(-1, "env=hopper", env="hopper", gamma=0.9)])


def test_a_changed_base_is_refused_even_for_new_jobs():
    known = [job(0, n=1, steps=10), job(1, n=2, steps=10)]
    with pytest.raises(ConfigChangedError, match="steps: 10 -> 20"):
        refuse_other_base(known, [job(n=4, steps=20)], {"n"})


@pytest.mark.parametrize(
    ("known", "wanted", "swept"),
    [
        # The axis grows.
        ([job(n=1, a=0), job(n=2, a=0)], [job(n=4, a=0)], {"n"}),
        # One value, then several: the axis is named by the second launch.
        ([job(n=1, a=0)], [job(n=1, a=0), job(n=2, a=0)], {"n"}),
        # A group holds keys of its own.
        (
            [job(**{"env.id": "A", "a": 0})],
            [job(**{"env.id": "B", "env.step_ms": 5, "a": 0})],
            {"env"},
        ),
        # What follows from an axis varies with it.
        ([job(n=1, twice=2), job(n=2, twice=4)], [job(n=4, twice=8)], {"n"}),
    ],
)
def test_more_of_the_same_sweep_is_accepted(known, wanted, swept):
    assert refuse_other_base(known, wanted, swept) is None  # where it refuses, it raises


def test_a_key_that_appeared_is_a_change():
    with pytest.raises(ConfigChangedError, match="extra: \\(absent\\) -> 1"):
        refuse_other_base([job(n=1)], [job(n=1, extra=1)], {"n"})
