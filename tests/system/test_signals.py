import os
import pty
import signal
import subprocess
import sys

import pytest

from walle.errors import Interrupted
from walle.system.signals import (
    ENDING,
    FOR_AGENT,
    SAVING,
    Signals,
    signal_handlers,
    standard_output,
    stopped_by,
)


@pytest.fixture(autouse=True)
def handlers_stay():
    before = {number: signal.getsignal(number) for number in FOR_AGENT}
    yield
    assert {number: signal.getsignal(number) for number in FOR_AGENT} == before


@pytest.fixture
def signals(monkeypatch):
    monkeypatch.setattr("walle.system.signals.leave_terminal", lambda: None)
    with Signals().installed() as installed:
        yield installed


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_asks_for_an_orderly_end_and_is_answered(signals, number, capfd):
    assert not signals.arrived()
    signal.raise_signal(number)
    assert signals.received == number
    assert signals.waitable.poll()
    assert capfd.readouterr().out.startswith("\nstopping, with a checkpoint; a second")


@pytest.mark.parametrize("first", ENDING)
def test_a_second_ctrl_c_ends_the_run_at_once(signals, first):
    signal.raise_signal(first)
    with pytest.raises(KeyboardInterrupt) as stop:
        signal.raise_signal(signal.SIGINT)
    assert stopped_by(stop.value) == signal.SIGINT


@pytest.mark.parametrize("first", ENDING)
@pytest.mark.parametrize("second", [signal.SIGHUP, signal.SIGTERM])
def test_what_a_terminal_or_a_scheduler_sends_twice_breaks_nothing_off(signals, first, second):
    signal.raise_signal(first)
    signal.raise_signal(second)
    assert signals.received == first


def test_only_the_first_signal_breaks_off(signals):
    with pytest.raises(Interrupted), signals.breaking_off():
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Interrupted), signals.breaking_off():
        pytest.fail("the signal has arrived before")


@pytest.mark.parametrize("number", SAVING)
def test_a_request_for_a_checkpoint_is_taken_once_and_ends_nothing(signals, number):
    assert not signals.take_save_request()
    with signals.breaking_off():
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert not signals.arrived()
    assert not signals.waitable.poll()
    assert signals.take_save_request()
    assert not signals.take_save_request()


def test_a_hang_up_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals().installed() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert not signals.arrived()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_file_gets_the_lines_after_a_hang_up_and_a_pipe_does_not(tmp_path):
    command = (
        "import sys; from walle.system.signals import leave_terminal\n"
        "leave_terminal()\n"
        "print('out', flush=True); print('err', file=sys.stderr, flush=True)"
    )
    file = tmp_path / "log"
    with file.open("w") as log:
        done = subprocess.run(
            [sys.executable, "-c", command], stdout=log, stderr=subprocess.PIPE, check=True
        )
    assert (file.read_text(), done.stderr) == ("out\n", b"")


def test_a_terminal_that_closes_leaves_the_run_able_to_print(tmp_path):
    command = (
        "import sys; from walle.system.signals import Signals\n"
        "with Signals().installed() as signals:\n"
        "    print('ready', flush=True)\n"
        "    signals.waitable.poll(60)\n"
        "    print('the last line', flush=True)\n"
        "open(sys.argv[1], 'w').write(str(signals.received))"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", command, str(tmp_path / "received")])
    assert os.read(terminal, 5) == b"ready"
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0
    assert (tmp_path / "received").read_text() == str(int(signal.SIGHUP))


def test_signals_are_collected_unless_they_were_ignored():
    collected = []
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with signal_handlers(dict.fromkeys(SAVING, collected.append), keep_ignored=SAVING):
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1):
                signal.raise_signal(number)
        assert collected == [signal.SIGUSR1] * 2
        assert signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_without_standard_streams_a_command_is_silent():
    code = (
        "import os; from walle.system.signals import standard_output\n"
        "with standard_output():\n"
        "    print('said'); input_ = os.read(0, 9); open('/dev/null')\n"
        "    os.write(1, b'said'); os.write(2, b'said')\n"
        "    raise SystemExit(0 if input_ == b'' else 1)"
    )
    closed = f'exec {sys.executable} -c "$0" <&- >&- 2>&-'
    assert subprocess.run(["bash", "-c", closed, code]).returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_on_a_full_disk_is_named(unbuffered):
    code = "from walle.system.signals import standard_output\nwith standard_output(): print('said')"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    said = "walle: cannot write to standard output: [Errno 28] No space left on device; redirect"
    assert (done.returncode, done.stderr.startswith(said)) == (1, True)
    assert done.stderr.count("\n") == 1


def test_an_error_that_the_output_did_not_cause_stays(capsys):
    with pytest.raises(FileNotFoundError), standard_output():
        os.stat("/nowhere/at/all")
    with pytest.raises(OSError, match="no room"), standard_output():
        raise OSError(28, "no room")
    capsys.readouterr()


ASCII = [  # the second as in the C locale where Python's UTF-8 mode is off
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
]


@pytest.mark.parametrize("locale", ASCII)
def test_what_an_encoding_lacks_is_printed_as_escapes(locale):
    code = "from walle.system.signals import standard_output as s\nwith s(): print('\\xb1')"
    env = {**os.environ, **locale}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"\\xb1\n")


@pytest.mark.parametrize("command", ["walle.run", "walle"])
def test_help_is_read_and_printed_in_any_locale(command):
    env = {**os.environ, **ASCII[1]}
    words = [sys.executable, "-m", command, "--help"]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
