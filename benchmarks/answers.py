"""Programs that answer each line of input with a line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.options import chosen
from benchmarks.provenance import ROOT, why_absent
from walle.system.machine import THREAD_VARIABLES, usable_cores

PEERS = {"sb3": "stable-baselines3", "sbx": "sbx-rl"}
_ONE_THREAD_XLA = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Contestant(NamedTuple):
    """A contestant that answers."""

    name: str  # in the tables
    system: str  # the worker's function
    learners: int = 1
    shards: int = 1  # of a minibatch
    same: bool = False  # whether walle does no more than the peers, with their hyperparameters


def contestants(
    args: argparse.Namespace,
    own: Sequence[Contestant],
    baseline: str,
    peers: Mapping[str, str] = PEERS,
) -> list[Contestant]:
    """Walle's `own`, the peers with their packages, and the system `baseline` with more learners.

    Prints a line for each peer that cannot take part.
    """
    found = list(own)
    for name, package in peers.items():
        reason = why_absent(args.peers, (package,), "--peers")
        if reason:
            print(f"{name}: left out, {reason}", flush=True)
        else:
            found.append(Contestant(name, name))
    for k in args.learners:
        found.append(Contestant(f"walle-{k}-shards", baseline, 1, k))
        found.append(Contestant(f"walle-{k}-learners", baseline, k, k))
    names = chosen([contestant.name for contestant in found], args.only)
    return [contestant for contestant in found if contestant.name in names]


def limits(threads: int) -> dict[str, str]:
    """Environment variables that limit all libraries to `threads` threads; JAX takes one or all."""
    jax = {"XLA_FLAGS": _ONE_THREAD_XLA} if threads == 1 else {}
    return {**dict.fromkeys(THREAD_VARIABLES, str(threads)), **jax, "JAX_PLATFORMS": "cpu"}


@contextmanager
def answering(
    python: str, program: Path, cores: int, threads: int = 1
) -> Iterator[subprocess.Popen[str]]:
    """A context with the process of an answering program, which ends after the body."""
    pinned = usable_cores()[:cores]
    if len(pinned) < cores:
        raise SystemExit(f"{cores} cores are needed, {len(pinned)} are usable; see --learners")
    process = subprocess.Popen(
        [python, "-W", "ignore", str(program)],
        env={**os.environ, **limits(threads), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, pinned),
    )
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:  # in the middle of a slow update
            process.kill()
            process.wait()


def asked(process: subprocess.Popen[str], question: str) -> dict[str, Any]:
    """The program's answer to a line."""
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{question}\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise RuntimeError(f"{shlex.join(map(str, process.args))} ended with {process.wait()}")
