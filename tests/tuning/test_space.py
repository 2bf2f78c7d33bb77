"""Hydra's sweep syntax as Optuna's distributions."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from walle.errors import ConfigError
from walle.tuning.space import plain, read_space, text


def space(*arguments, params=None):
    return read_space(params or {}, arguments, OverridesParser.create())


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1,2,3", CategoricalDistribution([1, 2, 3])),
        ("choice(a,b)", CategoricalDistribution(["a", "b"])),
        ("0.1,null,true", CategoricalDistribution([0.1, None, True])),
        ("choice(1,1,2)", CategoricalDistribution([1, 2])),
        ("choice([1,2],[3])", CategoricalDistribution(["[1,2]", "[3]"])),
        ("choice('1',1)", CategoricalDistribution(["'1'", 1])),
        ("'1',1", CategoricalDistribution(["'1'", 1])),
        ("choice('a b',c)", CategoricalDistribution(["'a b'", "c"])),
        ("range(1,4)", IntDistribution(1, 3)),
        ("range(10,1,-3)", IntDistribution(4, 10, step=3)),
        ("range(0,1,0.25)", FloatDistribution(0, 0.75, step=0.25)),
        ("range(0,1,0.3)", FloatDistribution(0, 0.9, step=0.3)),
        ("range(0.1,0.4,0.1)", FloatDistribution(0.1, 0.3, step=0.1)),
        ("range(1,0,-0.1)", FloatDistribution(0.1, 1, step=0.1)),
        ("interval(0,1)", FloatDistribution(0, 1)),
        ("int(interval(1,9))", IntDistribution(1, 9)),
        ("tag(log,interval(1e-4,1e-2))", FloatDistribution(1e-4, 1e-2, log=True)),
        ("tag(log,int(interval(1,100)))", IntDistribution(1, 100, log=True)),
        ("int(tag(log,interval(1,100)))", IntDistribution(1, 100, log=True)),
        ("float(range(1,4))", FloatDistribution(1, 3, step=1)),
        ("int(choice(1.0,2.0))", CategoricalDistribution([1, 2])),
        ("sort(3,1,2)", CategoricalDistribution([1, 2, 3])),
    ],
)
def test_sweeps_become_distributions(written, expected):
    assert space(f"x={written}").distributions == {"x": expected}
    assert space(params={"x": written}).distributions == {"x": expected}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("x=glob(*)", "name the options, as in choice(a,b)"),
        ("x=shuffle(1,2)", "the sampler chooses the order"),
        ("x=tag(lgo,interval(1,2))", "the tag 'lgo' is unknown; did you mean 'log'?"),
        ("x=tag(log,choice(1,2))", "choices have no scale"),
        ("x=tag(log,interval(0,1))", "a logarithmic scale has no 0.0; start above 0"),
        ("x=tag(log,range(1,9,2))", "steps have no logarithmic scale"),
        ("x=tag(log,range(1.0,9.0))", "steps have no logarithmic scale"),
        ("x=interval(2,1)", "2.0 is not below 1.0"),
        ("x=range(3,3)", "it is empty"),
        ("x=1", "nothing to search"),
    ],
)
def test_what_has_no_meaning_is_refused(argument, message):
    with pytest.raises(ConfigError) as error:
        space(argument)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_command_line_wins_and_other_settings_are_fixed():
    params = {"x": "interval(0,1)", "y": 3, "z": [1, 2], "w": None, "v": "choice(a,b)"}
    found = space("x=range(3)", "name=mine", "v=a", params=params)
    assert found.distributions == {"x": IntDistribution(0, 2)}
    assert found.fixed == ("y=3", "z=[1,2]", "w=null", "v=a", "name=mine")
    assert found.written == {"x": "range(3)"}
    assert found.overrides({"x": 1})[-1] == "x=1"


def test_a_setting_to_add_keeps_its_plus():
    assert space("+x=1,2").overrides({"+x": 2}) == ["+x=2"]


def test_the_ends_cover_every_choice():
    found = space("x=interval(0,1)", "y=a,b,c")
    ends = list(found.ends())
    assert ends == [{"x": 0, "y": "a"}, {"x": 1, "y": "c"}, {"x": 0, "y": "b"}]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        *((one, one) for one in (None, True, 1, 0.1, 1e-5, 1e20, "a")),
        ("'1'", "1"),
        ("'a b'", "a b"),
        ("[1,2]", [1, 2]),
        ("{a:1}", {"a": 1}),
    ],
)
def test_values_are_written_as_hydra_reads_them(value, read):
    assert plain(text(value)) == plain(value) == read
    assert type(plain(value)) is type(read)
