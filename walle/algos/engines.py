"""Chooses the engine of an algorithm: C++, PyTorch compiled by torch.compile, or eager PyTorch.

The C++ libraries (`walle/learning/native`) support fully connected networks with tanh, relu,
norm_relu or critic_norm_relu, in float32 on one CPU core for each learner, and the policies and
losses of walle's own algorithms. PyTorch handles everything else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from walle.errors import CompileError, ConfigError, WalleError, WorkerError
from walle.learning.native.library import ACTIVATIONS, CompilerError, ints, widths
from walle.learning.native.passes import KINDS, Loss, Passes
from walle.learning.native.replay_updates import ActorCritic
from walle.learning.sharing.team import Team
from walle.nets.critics import Critic

MODES = ("auto", "true", "false")
LONG_RUN = 10_000  # gradient steps
ROWS_VARY = "rounds differ in their number of steps, and a gradient step uses a whole round"


class Part(NamedTuple):
    """A part of learning that can leave eager PyTorch."""

    name: str  # the name for messages: "learning", "policy" or "value function"
    steps: int  # gradient steps of the run
    # takes all later steps in C++; None if the library does not support the networks
    load: Callable[[], None] | None
    # compiles all later steps by `torch.compile`; None if they differ in their number of rows
    compile: Callable[[], None] | None


def choose(mode: str, device: str, parts: Sequence[Part], team: Team) -> str:
    """Chooses an engine for each part; returns one line: the choices and their reasons.

    `mode` is `algo.compile`: "false" is eager PyTorch; "true" is C++, or `torch.compile` if the
    library does not support the networks; "auto" is C++ if it does, else `torch.compile` if the
    run takes 10,000 gradient steps or more. The choice never depends on timing or on a cache,
    because the engines differ in the last bits of their numbers. Every learner must call `choose`.

    Raises:
        CompileError: the compiler does not work, and `mode` is "true".
        WorkerError: some learners stay eager in a part, and others do not.
    """
    outcomes = [_choose(mode, device, part) for part in parts]
    code = sum(is_eager << place for place, (is_eager, _) in enumerate(outcomes))
    fault = "some learners compiled and others could not, see above; use algo.compile=false"
    codes = team.gather(team.size, 1, lambda _: torch.tensor([float(code)]))
    if (codes != codes[0]).any():
        raise WorkerError(fault)
    return "; ".join(f"{part.name} {o[1]}" for part, o in zip(parts, outcomes, strict=True))


def _choose(mode: str, device: str, part: Part) -> tuple[bool, str]:
    """Whether the part stays eager, and the line."""
    if mode == "false":
        return True, "eager: algo.compile=false"
    engine = part.load or part.compile
    if engine is None:
        return True, f"eager: {ROWS_VARY}"
    if not part.load and mode == "auto" and part.steps < LONG_RUN:
        return True, f"eager: this run takes fewer than {LONG_RUN:,} gradient steps"
    reason = missing_compiler(device)
    if not reason:
        try:
            engine()
        except WalleError:  # it concerns the run, not the compiler
            raise
        except Exception as error:
            reason = f"compiling failed ({_first_line(error)})"
            if mode == "true":
                fix = "name a compiler that works in CXX, or use algo.compile=auto"
                raise CompileError(f"algo.compile=true: {reason}; {fix}") from error
        else:
            return False, "in C++" if part.load else "compiled by torch.compile"
    return True, f"eager: {reason}"


def check(mode: str, device: str, parts: Sequence[Part]) -> None:
    """Refuses algo.compile=true if a program is missing, or a part cannot leave eager PyTorch."""
    if mode == "true" and (missing := missing_compiler(device)):
        raise ConfigError(f"algo.compile=true: {missing}, or use algo.compile=auto")
    if mode == "true" and any(part.load is None and part.compile is None for part in parts):
        raise ConfigError(f"algo.compile=true: {ROWS_VARY}; use algo.compile=auto")


def missing_compiler(device: str) -> str:
    """The tool that compiling for `device` lacks, with the fix; empty if nothing is missing."""
    compiler = os.environ.get("CXX", "g++").split()
    if not compiler:
        return "CXX is empty, so there is no C++ compiler; unset CXX or name a compiler in it"
    if shutil.which(compiler[0]) is None:
        return f"no C++ compiler ({' '.join(compiler)}) found; install g++ or set CXX"
    if torch.device(device).type == "cuda" and find_spec("triton") is None:
        return "compiling for a GPU needs triton, which is not installed; install triton"
    return ""


def _first_line(error: Exception) -> str:
    """The first line of a compiler's output that reports an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines or [repr(error)]
    prefix = f"CXX={os.environ.get('CXX', 'g++')}: " if isinstance(error, CompilerError) else ""
    return prefix + errors[0][:200]


def has_networks(algorithm: Any) -> bool:
    """Whether the C++ libraries support an algorithm's networks, whatever its losses."""
    net, problem = algorithm.net, algorithm.problem
    is_own = type(algorithm).__module__.partition(".")[0] != "walle" or net.own is not None
    on_cpu = torch.device(problem.device).type == "cpu" and torch.get_num_threads() == 1
    plain = net.activation in ACTIVATIONS and problem.obs_layout.dtype == "float32"
    return plain and on_cpu and not is_own


def has_policy(algorithm: Any) -> bool:
    """Whether `Passes` in C++ can improve the policy of an on-policy algorithm."""
    return has_networks(algorithm) and type(algorithm.policy) in KINDS


def passes(algorithm: Any, critic: Critic | None, loss: Loss) -> Passes:
    """Passes in C++ that improve an on-policy algorithm's policy, and its critic if it has one."""
    s, activation = algorithm.settings, algorithm.net.activation
    loss = loss._replace(
        gamma=s.gamma,
        gae_lambda=algorithm.gae_lambda,
        correction=s.correction,
        normalize_advantages=s.normalize_advantages,
    )
    adam, x = algorithm.adam_settings, algorithm.problem
    return Passes(algorithm.policy, critic, activation, loss, adam, x.shards, x.obs_dim)


def actor_critic(algorithm: Any) -> Any:
    """The networks of an off-policy algorithm for `NativeUpdates`, which adds the settings."""
    policy, critic = widths(algorithm.policy.layout), widths(algorithm.critic.mlps[0])
    return ActorCritic(
        policy=ints(policy),
        critic=ints(critic),
        policy_layers=len(policy) - 1,
        critic_layers=len(critic) - 1,
        critics=algorithm.critics,
        actions=algorithm.policy.action_dim,
        obs=algorithm.problem.obs_dim,
        updates=algorithm.settings.updates_per_block,
        draws=algorithm.draws,
    )
