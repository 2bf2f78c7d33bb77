"""How a worker ended, in words."""

import json
import os
import subprocess
import sys

import pytest

from walle.processes.worker import Worker

COMMAND = """
import json, os, signal, time
from multiprocessing import forkserver
from walle.processes.forkserver import start_fork_server
from walle.processes.worker import Worker, end_all

start_fork_server(for_workers=False)
server = forkserver._forkserver._forkserver_pid
told = [Worker("sampler-0", os._exit, (255,)), Worker("sampler-1", time.sleep, (600,))]
late = Worker("sampler-2", time.sleep, (600,))
texts = []
told[0].ended(60)
texts.append(told[0].how_it_ended())
os.kill(server, signal.SIGKILL)
os.kill(told[1].pid, signal.SIGKILL)
texts.append(told[1].how_it_ended())
new = Worker("sampler-3", os._exit, (255,))  # starts another server
os.kill(late.pid, signal.SIGSEGV)
late.ended(60)
texts.append(late.how_it_ended())
new.ended(60)
texts.append(new.how_it_ended())
end_all([*told, late, new], 0)
print(json.dumps(texts))
"""


def test_the_death_of_the_fork_server_is_told_from_an_exit_with_255():
    done = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True, timeout=120
    )
    texts = json.loads(done.stdout)
    exited = [
        text.startswith(f"sampler-{i} (pid ") and "exited with 255" in text
        for i, text in zip((0, 3), (texts[0], texts[3]), strict=True)
    ]
    assert exited == [True, True], texts
    for i in (1, 2):
        assert texts[i].startswith(f"sampler-{i} (pid ")
        assert "fork server" in texts[i]
        assert "255" not in texts[i]


@pytest.mark.parametrize(
    ("target", "argument", "words"),
    [
        (os._exit, 7, "exited with 7; the environment or a library called os._exit or exit in C"),
        (os._exit, 0, "exited with 0; the environment or a library called os._exit or exit in C"),
        ("SIGKILL", None, "was killed by SIGKILL; was it out of memory?"),
        ("SIGSEGV", None, "was killed by SIGSEGV; native code of the environment"),
        ("SIGBUS", None, "was killed by SIGBUS; native code of the environment"),
        ("SIGABRT", None, "was killed by SIGABRT; native code of the environment"),
        ("SIGALRM", None, "was killed by SIGALRM"),
    ],
)
def test_an_end_is_told_with_its_likely_reason(target, argument, words):
    arguments = (argument,) if argument is not None else (target,)
    worker = Worker("sampler-4", kill_self if isinstance(target, str) else target, arguments)
    assert worker.ended(60)
    assert worker.how_it_ended().startswith(f"sampler-4 (pid {worker.pid}) {words}")
    worker.close()


def kill_self(name):
    import resource
    import signal

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.Signals[name], signal.SIG_DFL) if name != "SIGKILL" else None
    os.kill(os.getpid(), signal.Signals[name])
