import signal

import pytest

from walle.processes.workers import how_it_ended


class Ended:
    """A process that ended with a code."""

    name, pid = "sampler-1", 7

    def __init__(self, code):
        self.exitcode = code

    def join(self):
        pass


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (7, "exited with 7; the environment, or a library, called os._exit"),
        (-signal.SIGKILL, "was killed by SIGKILL; was it out of memory?"),
        (-signal.SIGSEGV, "was killed by SIGSEGV; a fault in native code, perhaps the environment"),
        (255, "the fork server, which knows how processes ended, has died"),
    ],
)
def test_the_end_of_a_process_has_a_hint(code, text):
    assert text in how_it_ended(Ended(code))
