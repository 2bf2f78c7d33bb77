"""Process trees. The code under test runs in a process of its own, which owns the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from walle.system.process_tree import RUN_MARK

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> str:
    """What the code prints."""
    prelude = "import os, signal, subprocess, sys, time\n" + (
        "from walle.system.process_tree import *\n"
    )
    env = {name: value for name, value in os.environ.items() if name != RUN_MARK}
    done = subprocess.run(
        [sys.executable, "-c", prelude + code],
        env=env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )
    return done.stdout.strip()


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_an_orphan_in_a_session_of_its_own_is_ended_even_if_it_will_not():
    """A child starts a grandchild that ignores SIGTERM and leaves its session, and then dies."""
    pid = run(
        """
adopt_orphans()
grandchild = ("import signal, time, os; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
              "print(os.getpid(), flush=True); time.sleep(600)")
child = (f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {grandchild!r}], "
         "start_new_session=True, stdout=subprocess.PIPE); print(int(p.stdout.readline()))")
pid = int(subprocess.check_output([sys.executable, "-c", child]))
assert descendants(os.getpid()) == [pid]
assert end_descendants(0.2) == []
assert descendants(os.getpid()) == []
print(pid)
"""
    )
    assert not alive(int(pid))


def test_a_process_that_goes_when_asked_is_given_time():
    """It writes its last words on SIGTERM, as a tracker of shared memory frees its segments."""
    words = run(
        """
adopt_orphans()
code = ("import signal, sys, time\\n"
        "def bye(*_):\\n    time.sleep(0.2); print('last words', flush=True); sys.exit()\\n"
        "signal.signal(signal.SIGTERM, bye); print('ready', flush=True); time.sleep(600)")
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
end_descendants(30)
print(child.stdout.read().strip())
"""
    )
    assert words == "last words"


def test_spared_children_keep_what_they_started():
    run(
        """
adopt_orphans()
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
spared, other = subprocess.Popen(sleeper), subprocess.Popen(sleeper)
end_descendants(1, spare=[spared.pid])
assert descendants(os.getpid()) == [spared.pid]
spared.kill()
"""
    )


def test_a_process_dies_with_its_parent():
    pid = int(
        run(
            """
parent = os.getpid()
pid = os.fork()
if pid == 0:
    die_with_parent(parent)
    os.close(1)
    time.sleep(600)
print(pid, flush=True)
time.sleep(0.2)
os.kill(parent, 0)
"""
        )
    )
    deadline = time.monotonic() + 10
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_marked_processes_are_found_wherever_they_are():
    """The second one has an environment of its own, and the third was started before the mark."""
    found = run(
        """
def start(**more):
    return subprocess.Popen(["sleep", "600"], start_new_session=True, **more)
third = start()
assert marked_processes() == []
mark_processes()
first, second = start(), start(env={})
print(marked_processes() == [first.pid])
end_processes(marked_processes, 0.2)
print(first.wait() == -signal.SIGTERM, second.poll(), third.poll())
second.kill(); third.kill()
"""
    )
    assert found == "True\nTrue None None"
