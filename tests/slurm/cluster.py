"""A real Slurm on this host, for tests: a controller and three nodes of two cores, as root.

Nothing of it needs munge, cgroups or accounting. A preempted job waits for `cred_expire` seconds
before it may start again, 120 by default.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NODES = ("n1", "n2", "n3")
MAX_ARRAY = 4
CONFIG = """
ClusterName=walletest
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
AuthInfo=cred_expire=5
CredType=cred/none
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/ctld.pid
SlurmdPidFile={directory}/%n.pid
SlurmctldLogFile={directory}/ctld.log
SlurmdLogFile={directory}/%n.log
SlurmctldPort={ports[0]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=100000,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MaxArraySize={max_array}
KillWait=20
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
"""


def is_installed() -> bool:
    """Whether this host has Slurm's daemons and commands, and the user may start them."""
    needed = ("slurmctld", "slurmd", "sbatch", "squeue")
    return os.geteuid() == 0 and all(shutil.which(name) for name in needed)


class Cluster:
    """The daemons, with their files in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        """Starts the daemons; returns once all nodes are idle."""
        self._directory = directory
        self.config = directory / "slurm.conf"
        for path in ("state", *(f"spool/{node}" for node in NODES)):
            (directory / path).mkdir(parents=True)
        host, ports = socket.gethostname().partition(".")[0], _free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        self.config.write_text(
            CONFIG.format(
                host=host, directory=directory, ports=ports, nodes=nodes, max_array=MAX_ARRAY
            )
        )
        self.environ = {"SLURM_CONF": str(self.config)}
        try:
            self.call("slurmctld", "-c")
            for node in NODES:
                self.call("slurmd", "-N", node)
            wait_until(lambda: self.ask("sinfo", "-h", "-p", "low", "-o", "%D %T") == "3 idle")
        except BaseException:
            self.stop()
            raise

    def call(self, *command: str) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(
            command, env=os.environ | self.environ, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout.strip()

    def ask(self, *command: str) -> str:
        """The same; empty while the command fails."""
        try:
            return self.call(*command)
        except AssertionError:
            return ""

    def workers(self) -> list[str]:
        """`NAME STATE` of every job in the queue."""
        return self.call("squeue", "-h", "-r", "-o", "%i %T").splitlines()

    def cancel_all(self) -> None:
        """Ends all jobs, and waits until the nodes are free again."""
        self.call("scancel", "-u", "root", "--state=PENDING")
        self.call("scancel", "-u", "root")
        self.call("scancel", "-u", "root", "--signal=KILL", "--full")
        wait_until(lambda: self.ask("sinfo", "-h", "-p", "low", "-o", "%D %T") == "3 idle")

    def stop(self) -> None:
        """Ends the daemons and every job."""
        with contextlib.suppress(AssertionError):
            self.cancel_all()
        pids = [int(file.read_text()) for file in self._directory.glob("*.pid")]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    """Waits for what happens soon."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
