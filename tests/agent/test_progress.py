"""The returns on the bar and in the last line of a run."""

import threading

import pytest

from walle.agent.recorder import Progress, describe
from walle.system.format import return_text
from walle.timing import AGENT_SECTIONS, Timer
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


@pytest.mark.parametrize("kind", ["lines", "bar"])
def test_a_long_round_shows_what_it_does(kind, capfd):
    timer, described = Timer(AGENT_SECTIONS), threading.Event()
    progress = Progress(kind, 100, every_s=0.01)

    def doing():
        described.set()
        return f"round 7: {timer}"

    timer.switch("update")
    progress.doing = doing
    assert described.wait(60)
    described.clear()
    assert described.wait(60)  # the first one has been printed
    progress.close()
    assert "round 7: learning for 0 s" in "".join(capfd.readouterr())
