import os
import subprocess
import sys

import pytest

from walle.errors import ConfigError
from walle.system.exits import exits_told

LINE = "env.id=Rude called os._exit(7), which ends the whole run without a word: raise an error"


def leave():
    with exits_told("env.id=Rude"):
        os._exit(7)


def leave_in_spite_of_the_error():
    with exits_told("env.id=Rude"):
        try:
            os._exit(7)
        except Exception:  # noqa: BLE001 - as an environment may
            return


@pytest.mark.parametrize("body", [leave, leave_in_spite_of_the_error])
def test_an_exit_is_an_error_with_its_status(body):
    before = os._exit
    with pytest.raises(ConfigError) as found:
        body()
    assert str(found.value).startswith(LINE)
    assert os._exit is before


def test_forked_processes_exit_as_they_want():
    with exits_told("env.id=Rude"):
        child = os.fork()
        if not child:
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5


def said(how):
    code = f"""
import ctypes, os, threading
from walle.system.exits import exits_told
with exits_told("env.id=Rude"):
    {how}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stdout + done.stderr


def test_an_exit_in_c_has_a_line():
    code, text = said("ctypes.CDLL(None).exit(3)")
    assert (code, text.count("\n")) == (3, 1)
    assert text.startswith("walle: env.id=Rude ended this process: it or a library called exit")


OTHER_THREAD = "threading.Thread(target=os._exit, args=[0]).start(); threading.Event().wait()"


@pytest.mark.parametrize("how", ["pass", OTHER_THREAD])
def test_nothing_is_said_where_nothing_is_wrong(how):
    assert said(how) == (0, "")


def test_the_body_s_own_error_is_raised():
    with pytest.raises(ValueError, match="the gearbox broke"), exits_told("env.id=Rude"):
        raise ValueError("the gearbox broke")
