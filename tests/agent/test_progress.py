"""The returns on the bar and in the last line of a run."""

import pytest

from walle.agent.recorder import describe
from walle.system.format import return_text
from walle.training import RunResult


@pytest.mark.parametrize(
    ("mean", "text"), [(1234.56, "1,234.6"), (-0.0357, "-0.036"), (0.0, "0"), (None, "-")]
)
def test_a_small_return_is_not_minus_zero(mean: float | None, text: str) -> None:
    assert return_text(mean) == text


def test_a_run_whose_episodes_never_ended_says_so() -> None:
    result = RunResult(-0.036, -0.036, None, 1000, 1.0, None)
    assert str(result) == "evaluation -0.036, no episode ended"


def test_a_narrow_terminal_shows_the_first_parts() -> None:
    row = {"return_mean": 61.25, "env_steps_per_s": 12345.6, "collect_share": 0.25}
    row["learn_share"] = 0.5
    whole = "eval 500.0  return 61.2  12,346 steps/s  collect 25%  learn 50%"
    assert describe(row, 500.0) == whole
    assert describe(row, 500.0, len(whole)) == whole
    assert describe(row, 500.0, 36) == "eval 500.0  return 61.2"
    assert describe(row, 500.0, 3) == "eval 500.0"
