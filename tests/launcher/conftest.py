"""A small Hydra application whose jobs do what they are told, and a way to run sweeps of it."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from walle.launcher.workers.claims import Claims
from walle.launcher.workers.submission import submissions

EXEC = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
ROOT = Path(__file__).resolve().parents[2]

APP = """
import os, signal, subprocess, sys, time
from pathlib import Path
import hydra

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def allowed(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))


def act(do):
    if do == "raise":
        raise ValueError("the cause")
    if do == "raise_late":
        time.sleep(2)
        raise ValueError("the cause")
    if do == "os_exit":
        os._exit(3)
    if do == "sys_exit":
        sys.exit("no way")
    if do == "sys_exit_2":
        print("app: the reason", file=sys.stderr)
        sys.exit(2)
    if do == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen(SLEEPER, start_new_session=True)
        time.sleep(600)
    if do == "save":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(Path("saved").write_text("")))
        signal.signal(signal.SIGUSR2, lambda *_: Path("warned").touch())
        Path("ready").touch()
        time.sleep(600)
    if do == "warned":
        signal.signal(signal.SIGUSR1, lambda *_: Path("warned").touch())
        Path("ready").touch()
    while do == "wait" and not Path("go").exists():
        time.sleep(0.05)
    if do == "memory":
        raise MemoryError
    if do == "leave":
        subprocess.Popen(SLEEPER, start_new_session=True)
    if do == "cores":
        child = subprocess.Popen([*SLEEPER], start_new_session=True)
        told = f"{allowed(os.getpid())} {allowed(child.pid)} {os.environ['OMP_NUM_THREADS']}"
        directory = Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir)
        (directory / "cores.txt").write_text(told)
        time.sleep(1)


@hydra.main(version_base="1.3", config_path=".", config_name="config")
def main(cfg):
    with open("ran.txt", "a") as file:
        file.write(f"{cfg.job}\\n")
    print(f"job {cfg.job} speaks")
    if not Path("healed").exists():
        act(cfg.do)
    time.sleep(cfg.sleep_s)
    return cfg.job * 10


if __name__ == "__main__":
    main()
"""
CONFIG = """
defaults:
  - override hydra/launcher: walle
name: null
job: 0
do: nothing
sleep_s: 0
seed: 0
sampler: {name: process, n: 1, max_lag: 0}
hydra:
  sweep: {dir: out}
"""


class App:
    """The application, in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.out = directory / "out"
        self._mark = uuid.uuid4().hex
        (directory / "app.py").write_text(APP)
        (directory / "config.yaml").write_text(CONFIG)

    def start(self, *arguments: str, **environ: str) -> subprocess.Popen[bytes]:
        """A sweep in the background; `said` tells what it printed."""
        with (self.directory / "said.txt").open("w") as said:
            return subprocess.Popen(
                [sys.executable, "app.py", "-m", *arguments],
                cwd=self.directory,
                env=self._environ() | environ,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def _environ(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT), "MARK": self._mark}

    def start_on_terminal(self, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
        """A sweep whose session has a terminal of its own; returns our end of it too."""
        ours, theirs = os.openpty()
        take_terminal = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {EXEC}"
        process = subprocess.Popen(
            [sys.executable, "-c", take_terminal, sys.executable, "app.py", "-m", *arguments],
            cwd=self.directory,
            env=self._environ() | {"COLUMNS": "120", "LINES": "40", "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        return process, ours

    def said(self) -> str:
        return (self.directory / "said.txt").read_text()

    def run(self, *arguments: str, **environ: str) -> tuple[int, str]:
        """A whole sweep: its exit code and what it printed."""
        code = self.start(*arguments, **environ).wait(timeout=500)
        return code, self.said()

    def speaks(self, num: int) -> bool:
        """True once the job's own code runs."""
        log = self.out / str(num) / "output.log"
        return log.exists() and "speaks" in log.read_text()

    def ran(self) -> list[int]:
        """The jobs that ran since the last call, sorted."""
        file = self.directory / "ran.txt"
        jobs = sorted(map(int, file.read_text().split())) if file.exists() else []
        file.unlink(missing_ok=True)
        return jobs

    def status(self, num: int) -> dict[str, object]:
        return json.loads((self.out / str(num) / "status.json").read_text())

    def index(self) -> list[dict[str, str]]:
        with (self.out / "index.csv").open() as file:
            return list(csv.DictReader(file))

    def states(self) -> list[str]:
        return [row["state"] for row in self.index()]

    def owners(self) -> dict[int, str]:
        """The worker of each job of the newest submission, "" without one."""
        claims = Claims(submissions(self.out)[-1].directory)
        return {claim.job: claims.owner(claim) for claim in claims.newest().values()}

    def manifest(self) -> dict[str, object]:
        return json.loads((self.out / "manifest.json").read_text())

    def processes(self) -> list[int]:
        """Everything alive that was ever started from here, in whatever session."""
        mark = f"MARK={self._mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def wait_until(self, condition, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.02)


@pytest.fixture
def app(tmp_path):
    app = App(tmp_path)
    yield app
    for pid in app.processes():
        os.kill(pid, signal.SIGKILL)
