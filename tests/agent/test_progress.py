"""The returns on the bar and in the last line of a run."""

import pytest

from walle.agent.progress import return_text
from walle.training import RunResult


@pytest.mark.parametrize(
    ("mean", "text"), [(1234.56, "1,234.6"), (-0.0357, "-0.036"), (0.0, "0"), (None, "-")]
)
def test_a_small_return_is_not_minus_zero(mean: float | None, text: str) -> None:
    assert return_text(mean) == text


def test_a_run_whose_episodes_never_ended_says_so() -> None:
    result = RunResult(-0.036, -0.036, None, 1000, 1.0, None)
    assert str(result) == "evaluation -0.036, no episode ended"
