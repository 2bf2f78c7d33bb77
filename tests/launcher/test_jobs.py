from __future__ import annotations

import pickle
import signal

import pytest

from walle.launcher.jobs import Ended, Verdict, judge
from walle.launcher.screen import alike

GIB = 2**30


def ended(exit_code=None, signum=None):
    return Ended(exit_code, signum, None, 3 * GIB, [])


def with_result(end, result):
    return end if result is None else end._replace(result=pickle.dumps(result))


@pytest.mark.parametrize(
    ("end", "result", "around", "state", "error"),
    [
        (ended(0), Verdict("completed", value=7), {}, "completed", None),
        # It returned, then crashed while Python closed down: what it returned counts.
        (ended(None, signal.SIGSEGV), Verdict("completed", value=7), {}, "completed", None),
        (ended(1), Verdict("failed", "ValueError: x"), {}, "failed", "ValueError: x"),
        (
            ended(2),
            Verdict("failed", "SystemExit: 2"),
            {"status": {"state": "failed", "error": "ConfigError: n=0"}},
            "failed",
            "ConfigError: n=0",
        ),
        (
            ended(2),
            Verdict("failed", "SystemExit: 2"),
            {"last_line": "walle: no such environment"},
            "failed",
            "walle: no such environment",
        ),
        # The launcher stopped it for its sweeper: a failure at that moment is none.
        (ended(143), Verdict("failed", "SystemExit: 143"), {"pruned": "x"}, "pruned", "x"),
        (ended(None, signal.SIGTERM), None, {"pruned": "x"}, "pruned", "x"),
        (ended(0), Verdict("completed", value=7), {"pruned": "x"}, "completed", None),
        (ended(2), Verdict("failed", "SystemExit: 2"), {}, "failed", "SystemExit: 2"),
        (
            ended(0),
            None,
            {},
            "failed",
            "its process ended with exit code 0 before the job returned",
        ),
        (ended(None, signal.SIGKILL), None, {}, "failed", "killed by SIGKILL"),
        (
            ended(None, signal.SIGKILL),
            None,
            {"out_of_memory": True},
            "failed",
            "killed by the kernel: out of memory (peak 3.0 GiB)",
        ),
        (
            ended(1),
            Verdict("failed", "WorkerError: sampler-0 died"),
            {"out_of_memory": True},
            "failed",
            "WorkerError: sampler-0 died; the kernel was ending processes for lack of memory",
        ),
        (
            ended(None, signal.SIGTERM),
            None,
            {"timeout_s": 5.0},
            "failed",
            "ran past its limit of 5 s",
        ),
        # It was told to stop, and returned instead: it was done anyway.
        (ended(0), Verdict("completed", value=1), {"interrupted": True}, "completed", None),
        (
            ended(0),
            Verdict("completed", value=1),
            {"status": {"state": "interrupted"}},
            "interrupted",
            "stopped before its end",
        ),
        (
            ended(130),
            Verdict("failed", "SystemExit: 130"),
            {},
            "interrupted",
            "stopped before its end",
        ),
        (
            ended(None, signal.SIGKILL),
            None,
            {"interrupted": True},
            "interrupted",
            "stopped before its end",
        ),
    ],
)
def test_ends_are_told_apart(end, result, around, state, error):
    verdict = judge(with_result(end, result), **{"status": {}} | around)
    assert (verdict.state, verdict.error) == (state, error)
    assert verdict.exit_code == end.exit_code
    assert verdict.signal == (signal.Signals(end.signal).name if end.signal else None)
    assert verdict.value == (result.value if state == "completed" else None)


def test_the_signal_a_job_obeyed_is_told_with_its_exit_code():
    around = {"status": {"state": "interrupted", "signal": "SIGINT"}}
    verdict = judge(with_result(ended(130), Verdict("failed", "SystemExit: 130")), **around)
    assert (verdict.state, verdict.exit_code, verdict.signal) == ("interrupted", 130, "SIGINT")


def test_a_failure_with_the_cause_of_another_but_for_numbers_names_its_job():
    first = {}
    ends = [Verdict("failed", f"lane {n} fell") for n in (3, 4)] + [
        Verdict("interrupted", "lane 5")
    ]
    found = [alike(first, number, end) for number, end in zip((7, 8, 9), ends, strict=True)]
    assert found == [ends[0], Verdict("failed", "as #7"), ends[2]]
    assert alike(first, 7, ends[0]) == ends[0]  # tried again
