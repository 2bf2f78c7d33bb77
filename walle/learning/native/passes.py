"""Passes over a round's rows in C++ (`passes.cpp`): policies and critics of fully connected layers.

The numbers equal those of the algorithms' losses in PyTorch, except for rounding. Nothing runs in
Python between the minibatches, and several learners synchronise inside the library.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from ctypes import POINTER, byref, c_double, c_float, c_int, c_long, c_void_p
from typing import Any, NamedTuple

import torch
from torch import Tensor

from walle.learning.adam import AdamSettings, AdamState, Learned, Result
from walle.learning.native.library import ACTIVATIONS, address, ints, load, structure, widths
from walle.learning.sharing.team import ALONE, Team
from walle.nets.critics import Critic
from walle.nets.policies import (
    BernoulliPolicy,
    CategoricalPolicy,
    GaussianPolicy,
    MultiCategoricalPolicy,
    StateScalePolicy,
)
from walle.nets.replay_policies import EpsilonGreedyPolicy

NAMES = ("loss", "grad_norm", "kl", "clip_fraction", "policy_loss", "value_loss", "entropy")
CORRECTIONS = {"none": 0, "truncated": 1, "vtrace": 2}  # of lag, in a round with a `ratio`
KINDS: dict[type, int] = {
    GaussianPolicy: 0,
    StateScalePolicy: 1,
    CategoricalPolicy: 2,
    MultiCategoricalPolicy: 2,
    BernoulliPolicy: 3,
    EpsilonGreedyPolicy: 4,
}
# Each objective of `passes.cpp`, and the names of the numbers that PyTorch returns for it.
OBJECTIVES = {"clip": 0, "policy_gradient": 1, "kl_penalty": 2, "action_value": 3}
INFO = {
    "clip": NAMES,
    "policy_gradient": ("loss", "grad_norm", "policy_loss", "value_loss", "entropy"),
    "kl_penalty": ("loss", "grad_norm", "kl", "policy_loss", "entropy"),
    "action_value": ("loss", "grad_norm", "value_loss"),
}


class Loss(NamedTuple):
    """Settings of a minibatch's loss, of when passes end early, and of the advantages."""

    objective: str = "clip"  # a key of `OBJECTIVES`; ignored without a policy
    clip: float = 0.2  # ε of PPO
    value_weight: float = 1.0  # c_v
    value_clip: float | None = None  # bound of a value's change; None for no bound
    entropy_weight: float = 0.0  # c_h
    eta: float = 0.0  # η, the weight of the squared excess of the KL divergence
    kl_target: float = 0.0  # the excess is the part of the KL divergence above twice this
    kl_limit: float | None = None  # passes end before a step if the KL divergence is larger
    noise_is_learned: bool = True  # whether steps train log standard deviations that are parameters
    gamma: float = 1.0  # γ
    gae_lambda: float = 1.0  # λ
    correction: str = "none"  # of lag, a key of `CORRECTIONS`
    normalize_advantages: bool = False  # over the round


class Columns(NamedTuple):
    """The columns of N rows; a value function needs `obs` and `target` only."""

    obs: Tensor  # [N, O]
    action: Tensor | None = None  # [N, *A] float32, or int64 of discrete actions
    log_prob: Tensor | None = None  # [N] of the action before the passes
    advantage: Tensor | None = None  # [N]
    target: Tensor | None = None  # [N] of the values
    value: Tensor | None = None  # [N] before the passes, for `value_clip`
    dist: Tensor | None = None  # [N, D] the old policy's distributions, for a KL penalty


_Networks = structure(
    "Networks",
    **dict.fromkeys(("policy", "critic"), POINTER(c_int)),
    **dict.fromkeys(("policy_layers", "critic_layers", "activation", "kind"), c_int),
    **{"counts": POINTER(c_int), "actions": c_int, "obs": c_int},
)
_INTS = "objective", "noise_is_learned", "correction", "normalize_advantages"
_Loss = structure("Loss", **{name: c_int if name in _INTS else c_float for name in Loss._fields})
_Adam = structure(
    "AdamSettings", **dict.fromkeys(("beta1", "beta2", "epsilon", "max_grad_norm"), c_double)
)
_Round = structure(
    "Round",
    **dict.fromkeys(("states", "needs_final", "ended", "reward", "continues", "ratio"), c_void_p),
    **dict.fromkeys(("steps", "lanes", "states_count"), c_long),
)
_Rows = structure("Rows", **dict.fromkeys(Columns._fields, c_void_p), count=c_long)
_TYPES: dict[str, Any] = {
    "new": (c_void_p, (*[c_void_p] * 3, c_int)),
    "delete": (None, [c_void_p]),
    "copy": (None, [c_void_p] * 5),
    "spent": (None, [c_void_p] * 2),
    "begin": (c_long, [c_void_p] * 2),
    "estimate": (c_int, [c_void_p] * 5),
    "run": (c_long, (*[c_void_p] * 3, c_long, c_float, c_float, c_void_p, c_void_p)),
}


class Passes:
    """Gradient steps on a policy, a critic or both, in passes over the rows of a round."""

    def __init__(
        self,
        policy: Any,
        critic: Critic | None,
        activation: str,
        loss: Loss,
        settings: AdamSettings,
        shards: int = 1,
        obs_dim: int | None = None,
    ) -> None:
        """Compiles and loads the library; raises CompilerError if compiling fails.

        `policy` is an instance of a class in `KINDS`, or None to fit only a critic. Without a
        critic the passes improve only a policy. `activation` is a key of `ACTIVATIONS`.
        Observations have `obs_dim` numbers, of which the policy sees the first and the critic the
        last ones.
        """
        self.team: Team = ALONE  # the learners that divide values and minibatches
        self._library = load("passes", _TYPES)
        nets = [net for net in (policy, critic) if net is not None]
        sizes = [[] if net is None else widths(net.layout) for net in (policy, critic)]
        self._obs_dim, self._size = obs_dim or max(sizes)[0], sum(net.layout.size for net in nets)
        self._has_policy, self._has_critic = policy is not None, critic is not None
        self._names = INFO[loss.objective] if policy else NAMES[:2]
        self._kind, self._counts = KINDS.get(type(policy), 0), _choices(policy)
        networks = _Networks(
            *(*map(ints, sizes), *(max(0, len(x) - 1) for x in sizes), ACTIVATIONS[activation]),
            *(self._kind, ints(self._counts), len(self._counts), self._obs_dim),
        )
        codes: dict[Any, Any] = {None: math.inf, **OBJECTIVES, **CORRECTIONS}
        weights, adam = (
            struct(*(codes.get(x, x) for x in fields))
            for struct, fields in ((_Loss, loss), (_Adam, settings))
        )
        new = byref(networks), byref(weights), byref(adam)
        self._learner = self._library.passes_new(*new, shards)
        weakref.finalize(self, self._library.passes_delete, self._learner)

    def join_team(self, team: Team) -> None:
        """Takes all later steps with `team`."""
        self.team = team

    def improve(
        self,
        vector: Tensor,
        state: AdamState,
        experience: Any,
        *,
        recompute: bool = False,
        **settings: Any,
    ) -> Learned:
        """Estimates the advantages with the critic, then takes the passes; see `minimise`.

        `experience` is a `walle.algos.on_policy.experience.Experience`, float32 on the CPU. With
        `recompute`, advantages are estimated before every epoch; otherwise only before the first.

        Raises TypeError for another dtype than the library's, ValueError for a shape that does not
        fit the others.
        """
        x, count = experience, experience.reward.numel()
        x = type(x)(*(None if column is None else column.contiguous() for column in x))
        # All tensors are made before the passes. Between passes torch's code is not in the cache,
        # and every call takes ten times as long.
        first, later = torch.empty(3, count), torch.empty(2, count)
        estimates = (first, later) if recompute else (first, first)
        obs, action, log_prob = x.states[:count], x.action.flatten(0, 1), x.log_prob.flatten()
        rows = [
            self._rows(Columns(obs, action, log_prob, to[-2], to[-1], first[0])) for to in estimates
        ]
        steps, states = x.reward.shape, count + int(x.needs_final_obs.sum())
        round_ = _Round(
            address(x.states, (states, self._obs_dim)),
            *(address(flags, steps, torch.bool) for flags in (x.needs_final_obs, x.ended)),
            *(address(column, steps) for column in (x.reward, x.continues)),
            *(None if x.ratio is None else address(x.ratio, steps), *steps, states),
        )

        def rows_of(epoch: int, team: Any) -> Any:
            again = epoch > 0
            if (recompute or not again) and not self.estimate(estimates[again], team):
                return None
            return rows[again]

        result = self._passes(vector, state, rows_of, count, byref(round_), **settings)
        return Learned(result, first[0], first[2])

    def minimise(self, vector: Tensor, state: AdamState, data: Any, **settings: Any) -> Result:
        """Passes over the rows of `data` in minibatches; see `Optimizer.minimise`.

        `data` is a named tuple of some of the `Columns`, on the CPU, and of `beta` [], the weight
        of a KL penalty. The settings are `epochs`, `minibatch_size`, `learning_rate`, `generator`.

        Raises TypeError for another dtype than the library's, ValueError for a column that is
        missing or does not fit N rows.
        """
        columns = {k: x.contiguous() for k, x in data._asdict().items() if x is not None}
        beta, count = float(columns.pop("beta", 0.0)), len(data.obs)
        rows = self._rows(Columns(**columns))
        return self._passes(vector, state, lambda *_: rows, count, None, beta=beta, **settings)

    def _passes(
        self,
        vector: Tensor,
        state: AdamState,
        rows_of: Callable[[int, Any], Any],
        count: int,
        round_: Any,
        *,
        epochs: int,
        minibatch_size: int,
        learning_rate: float,
        generator: torch.Generator,
        beta: float = 0.0,
    ) -> Result:
        minibatches = -(-count // minibatch_size)
        numbers = torch.empty(epochs * minibatches, len(NAMES))
        order = torch.empty(count if minibatches > 1 else 0, dtype=torch.int64)
        settings = minibatch_size, learning_rate, beta
        before = [x.contiguous() for x in (vector, state.mean, state.square)]
        after = [torch.empty_like(x) for x in before]
        pointers = [address(x, (self._size,)) for x in before]
        self._library.passes_copy(self._learner, *pointers, address(state.steps, ()))
        taken, epoch, stopped = 0, 0, False
        exchanged = self._library.passes_begin(self._learner, round_)
        with self.team.exchange(exchanged) as exchange:
            team = exchange and byref(exchange)
            while epoch < epochs and not stopped:
                rows = rows_of(epoch, team)
                if rows is None:
                    break  # leaving the context raises what broke the team
                if minibatches > 1:
                    torch.randperm(count, generator=generator, out=order)
                place = order.data_ptr() if minibatches > 1 else None
                steps = self.run(rows, place, settings, team, numbers[taken:].data_ptr())
                if steps < 0:
                    break
                epoch, taken, stopped = epoch + 1, taken + steps, steps < minibatches
        self._library.passes_copy(self._learner, *map(address, after), None)
        means = dict(zip(NAMES, numbers[: taken + stopped].mean(0).tolist(), strict=True))
        adam = AdamState(after[1], after[2], state.steps + taken)
        info = {name: means[name] for name in self._names}
        return Result(after[0], adam, info, taken, stopped)

    def _rows(self, x: Columns) -> Any:
        """The struct of rows, whose tensors must be contiguous and stay."""
        rows, discrete = len(x.obs), self._kind in (2, 3, 4)
        shapes: dict[str, tuple[int, ...]] = {"obs": (rows, self._obs_dim)}
        if self._has_policy:
            shapes |= {"action": (rows, len(self._counts)), "log_prob": (rows,)}
            shapes["advantage"] = (rows,)
        if self._has_critic or self._kind == KINDS[EpsilonGreedyPolicy]:
            shapes["target"] = (rows,)
        if x.value is not None:
            shapes["value"] = (rows,)
        if x.dist is not None:
            shapes["dist"] = (rows, sum(self._counts) if discrete else 2 * len(self._counts))
        pointers: dict[str, int] = {}
        for name, shape in shapes.items():
            column = getattr(x, name)
            if column is None:
                raise ValueError(f"{name}: expected the shape {shape}, got no tensor")
            column = column.unsqueeze(-1) if name == "action" and column.dim() == 1 else column
            dtype = torch.int64 if name == "action" and discrete else torch.float32
            pointers[name] = address(column, shape, dtype)
        return _Rows(**pointers, count=rows)

    def estimate(self, to: Tensor, team: Any) -> bool:
        """Writes values, advantages and targets into `to` [3, N]; the last two if it is [2, N].

        Returns False, and writes nothing, if the team broke.
        """
        pointers = [None] * (3 - len(to)) + [address(x) for x in to]
        return bool(self._library.passes_estimate(self._learner, team, *pointers))

    def run(
        self, rows: Any, order: int | None, settings: tuple[Any, ...], team: Any, numbers: int
    ) -> int:
        """Takes one step per minibatch until the KL divergence is too large; see `passes.cpp`.

        `rows` is the struct of a round's rows; `order` is the address of the rows' indices [N],
        or None for the rows as they come; `settings` are the number of rows in a minibatch, Adam's
        step size, and β; `team` points to the team's `Exchange`; `numbers` is the address
        to which the I numbers in `NAMES` of M minibatches are written, [M, I].
        """
        pass_ = byref(rows), order, *settings, team, numbers
        return int(self._library.passes_run(self._learner, *pass_))

    def spent(self) -> tuple[float, float]:
        """Seconds since the start in work that the learners divide, and in waiting for others."""
        spent = (c_double * 2)()
        self._library.passes_spent(self._learner, spent)
        return spent[0], spent[1]


def _choices(policy: Any) -> list[int]:
    """The number of choices in each entry of an action: 1 if it is continuous or a switch."""
    if isinstance(policy, MultiCategoricalPolicy):
        return policy.counts
    if isinstance(policy, CategoricalPolicy | EpsilonGreedyPolicy):
        return [policy.dist_params_size]
    return [1] * (policy.action_dim if policy else 0)
