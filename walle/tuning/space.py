"""Search spaces: Hydra's sweep syntax as Optuna's distributions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    FloatRange,
    IntervalSweep,
    Override,
    Quote,
    QuotedString,
    RangeSweep,
    Sweep,
)
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from walle.errors import ConfigError, nearest
from walle.launcher.planning import PLAIN

TAGS = ("log",)
Value = str | int | float | bool | None
Point = dict[str, Value]


class Space(NamedTuple):
    """The keys that a search varies, their possible values, and the overrides that it keeps."""

    fixed: tuple[str, ...]  # overrides that all jobs have
    distributions: dict[str, BaseDistribution]  # the possible values, by the key of the override
    written: dict[str, str]  # the values by key, as the user wrote them
    # makes a job's final overrides: those of its algorithm, see `ChoiceSettings.resolved`
    resolved: Callable[[list[str]], list[str]] = list

    def overrides(self, point: Mapping[str, Value]) -> list[str]:
        """The overrides of a job with these values."""
        values = (f"{key}={text(value)}" for key, value in point.items())
        return self.resolved([*self.fixed, *values])

    def ends(self) -> Iterator[Point]:
        """Points with every first value, with every last value, and one for each other choice.

        In a point for another choice of a key, all other keys have their first value.
        """
        ends: dict[str, Sequence[Value]] = {
            key: values.choices
            if isinstance(values, CategoricalDistribution)
            else (values.low, values.high)  # type: ignore[attr-defined]
            for key, values in self.distributions.items()
        }
        lowest = {key: values[0] for key, values in ends.items()}
        yield lowest
        yield {key: values[-1] for key, values in ends.items()}
        for key, values in ends.items():
            yield from (lowest | {key: value} for value in values[1:-1])


def read_space(
    params: Mapping[str, Any], arguments: Sequence[str], parser: OverridesParser
) -> Space:
    """Reads the search space from `hydra.sweeper.params` and the command line, which wins.

    Raises:
        ConfigError: an override with several values cannot be searched, or none has several.
        HydraException: a value is not in Hydra's syntax.
    """
    written = [  # a text may be a sweep; other values are written as Hydra would
        f"{key}={value if isinstance(value, str) else Override._get_value_element_as_str(value)}"
        for key, value in params.items()
    ]
    overrides = parser.parse_overrides([*written, *arguments])
    parsed = {f"{item.key_or_group}@{item.package or ''}": item for item in overrides}
    swept = {item.get_key_element(): item for item in parsed.values() if item.is_sweep_override()}
    if not swept:
        raise ConfigError(
            "hydra/sweeper=walle_optuna has nothing to search: give a setting several values, such "
            "as algo.learning_rate=tag(log,interval(1e-4,1e-2)) or algo=ppo,a2c"
        )
    fixed = tuple(str(item.input_line) for item in parsed.values() if not item.is_sweep_override())
    texts = {key: str(item.input_line).partition("=")[2] for key, item in swept.items()}
    return Space(fixed, {key: distribution(item) for key, item in swept.items()}, texts)


def distribution(override: Override) -> BaseDistribution:
    """The possible values of a sweep.

    `a,b` and `choice(a,b)` are categories; `range(1,10,3)` is 1, 4, 7; `interval(0,1)` is any
    number from 0 to 1, and `int(interval(1,9))` a whole number from 1 to 9. `tag(log, ...)`
    searches a range on a logarithmic scale. Raises `ConfigError` for other sweeps.
    """
    sweep, line = override.value(), override.input_line
    if not isinstance(sweep, Sweep):
        raise ConfigError(
            f"{line}: what a glob() stands for may change; name the options, as in choice(a,b)"
        )
    if unknown := sorted(sweep.tags - {*TAGS}):
        raise ConfigError(f"{line}: the tag {unknown[0]!r} is unknown; {nearest(unknown[0], TAGS)}")
    if getattr(sweep, "shuffle", False):
        raise ConfigError(f"{line}: the sampler chooses the order; leave shuffle() out")
    try:
        return _distribution(sweep, log="log" in sweep.tags)
    except (ValueError, ArithmeticError) as error:
        raise ConfigError(f"{line}: {error}") from None


def _distribution(sweep: Sweep, *, log: bool) -> BaseDistribution:
    if isinstance(sweep, IntervalSweep):
        low, high = sweep.start, sweep.end
        if low is None or high is None or not low < high:
            raise ValueError(f"{low} is not below {high}; give interval(low,high)")
        if log and low <= 0:
            raise ValueError(f"a logarithmic scale has no {low}; start above 0")
        if isinstance(low, int) and isinstance(high, int):
            return IntDistribution(low, high, log=log)
        return FloatDistribution(float(low), float(high), log=log)
    if isinstance(sweep, RangeSweep):
        numbers = sweep.range()
        if isinstance(numbers, FloatRange):  # of decimals as written: binary ones pass the end
            ends = sweep.start, sweep.stop, sweep.step
            numbers = FloatRange(*(Decimal(str(number)) for number in ends))
        values = sorted(numbers)
        if not values:
            raise ValueError("it is empty; the end is not part of a range, as in range(1,4)")
        low, high, step = values[0], values[-1], abs(sweep.step)
        whole = all(isinstance(value, int) for value in values)
        if log and (step != 1 or low < 1 or not whole):
            raise ValueError(
                "steps have no logarithmic scale; give tag(log, int(interval(low,high)))"
            )
        if whole:
            return IntDistribution(int(low), int(high), log=log, step=int(step))
        return FloatDistribution(float(low), float(high), step=float(step))
    assert isinstance(sweep, ChoiceSweep)
    if log:
        raise ValueError("choices have no scale; give tag(log, interval(low,high))")
    return CategoricalDistribution(list({text(v): v for v in map(_category, sweep.list)}.values()))


def _category(element: Any) -> Value:
    """A number, a truth value or None as itself, anything else as Hydra writes it."""
    if isinstance(element, QuotedString):
        return element.with_quotes()
    if isinstance(element, str) and not (PLAIN.fullmatch(element) and plain(element) == element):
        return QuotedString(element, Quote.single).with_quotes()
    if isinstance(element, int | float | str) or element is None:
        return element
    return str(Override._get_value_element_as_str(element))


def text(value: Value) -> str:
    """A value as written in an override."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def plain(value: Value) -> Any:
    """A value as Hydra reads it from an override: `'1'` is the text 1, `[1,2]` is a list."""
    if not isinstance(value, str):
        return value
    parsed = OverridesParser.create().parse_override(f"key={value}").value()
    return parsed.text if isinstance(parsed, QuotedString) else parsed
