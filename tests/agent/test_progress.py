"""The returns on the bar and in the last line of a run."""

import subprocess
import sys
import threading

import pytest

from walle.agent.recorder import Progress, describe
from walle.system.format import return_text
from walle.timing import AGENT_SECTIONS, Timer
from walle.training import RunResult


@pytest.mark.parametrize(
    ("mean", "text"), [(1234.56, "1,234.6"), (-0.0357, "-0.036"), (0.0, "0"), (None, "")]
)
def test_a_small_return_is_not_minus_zero(mean: float | None, text: str) -> None:
    assert return_text(mean) == text


def test_a_run_whose_episodes_never_ended_says_so() -> None:
    result = RunResult(-0.036, -0.036, None, 1000, 1.0, None)
    assert str(result) == "evaluation -0.036 (without exploration), no episode ended"
    assert str(result._replace(eval_mean=None)) == "no episode ended"


GONE = """
import os, pty, sys, time
from walle.agent.recorder import Progress

master, slave = pty.openpty()
results = os.dup(1)
for number in (1, 2):
    os.dup2(slave, number)
progress = Progress(sys.argv[1], 100, every_s=0.1)
os.close(master)  # nobody sends SIGHUP to a process without a controlling terminal
time.sleep(0.5)  # the watching thread writes too
assert progress._watcher.is_alive()
progress.say("a sampler is replaced")
row = {"return_mean": 1.0, "env_steps_per_s": 1.0, "iteration_s": 2.0, "env_steps": 5}
progress.show(row | {"collect_share": 0.2, "learn_share": 0.5}, None, {})
progress.close()
os.write(results, b"done")
"""


@pytest.mark.parametrize("kind", ["lines", "bar"])
def test_a_run_outlives_its_terminal(kind: str) -> None:
    command = [sys.executable, "-c", GONE, kind]
    assert subprocess.run(command, capture_output=True, timeout=60).stdout == b"done"


def test_a_narrow_terminal_shows_the_first_parts() -> None:
    row = {"return_mean": 61.25, "env_steps_per_s": 12345.6, "collect_share": 0.25}
    row |= {"learn_share": 0.5, "iteration_s": 2.0}
    whole = "eval 500.0  return 61.2  12,346 steps/s  collect 25%  learn 50%"
    assert describe(row, 500.0, {"evaluate": 0.01}) == whole
    assert describe(row, 500.0, {}, len(whole)) == whole
    assert describe(row, 500.0, {}, 36) == "eval 500.0  return 61.2"
    assert describe(row, 500.0, {}, 3) == "eval 500.0"


def test_the_first_row_names_start_up_and_compiling_and_no_return_before_an_episode() -> None:
    row = {"return_mean": None, "env_steps_per_s": 13568.0, "iteration_s": 50.0}
    row |= {"collect_share": 0.03, "learn_share": 0.01}
    spent = {"start-up": 10.0, "compile": 38.0}
    assert describe(row, None, spent) == (
        "start-up 20%  compile 76%  13,568 steps/s  collect 3%  learn 1%"
    )
    assert describe(row, None, spent, 26) == "start-up 20%  compile 76%"


def test_the_bar_says_that_the_last_evaluation_runs(capfd) -> None:
    timer = Timer(AGENT_SECTIONS)
    progress = Progress("bar", 100, every_s=60)
    progress.doing = lambda: f"last evaluation: {timer}"
    with timer.section("evaluate"):
        progress.look(100)
    progress.close()
    shown = "".join(capfd.readouterr())
    assert "100%" in shown
    assert "last evaluation: evaluating for 0 s" in shown


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
