import subprocess
import sys
import time

import pytest

from walle.errors import WorkerError
from walle.system.watchdog import LEAST_S, Watchdog


def test_work_that_lasts_too_long_is_named_and_then_ended():
    said, last = [], []
    watchdog = Watchdog(0.1, said.append, last.append)
    too_long = pytest.raises(WorkerError, match=r"the evaluation has lasted longer than 0 s")
    with too_long, watchdog.over("the evaluation"):
        time.sleep(60)
    assert len(said) == 1
    assert said[0].startswith("the evaluation has lasted for 0 s")
    assert last == []


def test_work_within_the_limit_is_left_alone():
    said = []
    with Watchdog(30, said.append, said.append).over("the evaluation"):
        time.sleep(0.01)
    assert said == []


def test_the_limit_grows_with_the_longest_work_so_far(monkeypatch):
    clock = iter([0.0, 20.0])
    monkeypatch.setattr("walle.system.watchdog.monotonic", lambda: next(clock))
    watchdog = Watchdog(None, print, print)
    assert watchdog.limit_s == LEAST_S
    with watchdog.over("a round"):
        pass
    assert watchdog.limit_s == 200


STUCK = """
import signal, sys, time
from walle.system import watchdog

watchdog.NATIVE_S = 0.2
signal.pthread_sigmask(signal.SIG_BLOCK, [watchdog.SILENT])  # as if native code did not return

def last_words(text):
    print(text, flush=True)
    if sys.argv[1] == "full disk":
        raise OSError("No space left on device")

with watchdog.Watchdog(0.1, print, last_words).over("the evaluation"):
    time.sleep(60)
print("too late")
"""


@pytest.mark.parametrize("disk", ["disk", "full disk"])
def test_a_process_stuck_in_native_code_ends_with_last_words(disk):
    done = subprocess.run(
        [sys.executable, "-c", STUCK, disk], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    text = "the evaluation has lasted longer than 0 s (sampler.timeout_s), and native code does not"
    assert done.stdout.splitlines()[1].startswith(text)
    assert done.stderr.startswith(f"walle: {text}")
    assert ("No space left" in done.stderr) == (disk == "full disk")


def test_work_that_goes_on_after_the_error_is_ended_too():
    """An environment may catch every exception and try again."""
    code = STUCK.replace("signal.pthread_sigmask", "(lambda *_: None)").replace(
        "    time.sleep(60)\n",
        "    while True:\n        try:\n            time.sleep(60)\n"
        "        except Exception:\n            continue\n",
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "disk"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.count("\n")) == (1, 2)
