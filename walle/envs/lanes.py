"""The contract between a batch of environments and the sampler that steps it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Literal, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from walle.envs.wrappers import name_of
from walle.errors import ConfigError, RolloutError
from walle.system.importing import with_module
from walle.types import SUCCESS, ActionSpace, AnyArray, BoolArray, IntArray, Keys

Saving = Literal["pickle", "replay", "none"]
StateArray = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class EnvSpec:
    """Description from which any process can build lanes. Picklable."""

    # a registered Gymnasium id, "module:Id-v0" to import `module` first, or "module:NAME" for the
    # `walle.envs.mujoco.robot.Robot`, the class or the function of that name
    id: str
    kwargs: dict[str, Any] = field(default_factory=dict, repr=False)  # the environment's arguments
    # "Name" or {"name": Name, argument: value}, the innermost first, see `walle.envs.wrappers`
    wrappers: list[Any] = field(default_factory=list, repr=False)
    small_images: bool = False  # whether images may have fewer than `LEAST_PIXELS` a side
    # "mujoco", "gymnasium" or "envpool"; "auto" is the fastest of them with Gymnasium's results
    backend: str = "auto"
    frame_skip: int = 1  # environment steps per action, rewards summed
    episode_limit: int | None = None  # environment steps before truncation; None: as registered
    # "rescale" maps [-1, 1] to the action bounds and clips, "clip" clips to the bounds, "raw" does
    # neither. Entries without finite bounds always pass unchanged
    action: str = "rescale"
    # bounds of actions within the environment's own, for all entries or for each; None: its own
    action_low: Any = None
    action_high: Any = None
    time_feature: bool = False  # append t / episode_limit (t / 1000 without a limit)
    keys: Keys | None = None  # of Dict observations, `policy_keys` and `critic_keys`; None for all
    # `kwargs` for messages, with `${oc.env:NAME}` in place of the value of an environment variable;
    # None if neither `kwargs` nor `wrappers` has such a value
    hidden: dict[str, Any] | None = None
    # how a Gymnasium environment's state is saved: "pickle", or "replay" of the episode's actions;
    # "none" if neither works. `walle.envs.probe` chooses
    saving: Saving = "pickle"
    # whether lanes with equal seeds agree, whatever the global generators do; the probe tests it
    exact: bool = True
    # subtracted from observations before float32 rounds large numbers; a new run's trial finds it
    offset: tuple[float, ...] | None = None
    # "stop" raises what the environment raises; "reset" notes it, see `Lanes.failed`
    on_error: str = "stop"
    reset_options: dict[str, Any] = field(default_factory=dict)  # the argument `options` of `reset`
    info: tuple[str, ...] = ()  # columns of the steps' infos, see `walle.types.InfoColumn.of`

    @classmethod
    def of(cls, settings: Any, net: str, resolved: Callable[[Any], Any] | None = None) -> EnvSpec:
        """Reads the `env` group and the net's name; `resolved` fills in environment variables."""
        names = [field.name for field in fields(cls)]
        known = {name: getattr(settings, name) for name in names if hasattr(settings, name)}
        given = {}
        if resolved:
            given = {name: resolved(known[name]) for name in known.keys() & {"kwargs", "wrappers"}}
        hidden = None if given.items() <= known.items() else settings.kwargs
        chosen = [getattr(settings, f"{name}_keys", None) for name in ("policy", "critic")]
        given |= {"hidden": hidden, "keys": None if chosen == [None, None] else tuple(chosen)}
        return cls(**{**known, **given, "small_images": net == "cnn"})

    @property
    def imports(self) -> list[tuple[str, str]]:
        """(setting, "module:Name" in it) for every module that the environment needs."""
        paths = [("env.id", with_module(self.id))] if self.backend != "envpool" else []
        return paths + [("env.wrappers", name_of(entry)) for entry in self.wrappers]

    @property
    def shown_kwargs(self) -> dict[str, Any]:
        """The arguments as a message may show them."""
        return self.kwargs if self.hidden is None else self.hidden


class Step(NamedTuple):
    """The results of one step of L lanes, in arrays that the lanes reuse at the next step."""

    obs: AnyArray  # [L, *O] what the policy sees next; after an end, the next episode's first
    reward: AnyArray  # [L] floating point
    terminated: BoolArray  # [L] the episode reached a terminal state
    truncated: BoolArray  # [L] the episode was cut short; if both are true, `terminated` counts
    # [L, *O] the last observation of each episode that ended; other rows have no meaning. None if
    # no episode ended
    final_obs: AnyArray | None
    # [L, K] the numbers that `EnvSpec.info` names, NaN where an info has none; None without names
    info: npt.NDArray[np.float64] | None = None


class Lanes(Protocol):
    """L environments that step together. A lane whose episode ends starts the next one itself.

    Attributes:
        observation_space: the observations of one lane, one-dimensional; `walle.types.layout_of`
            describes their entries.
        action_space: the actions of one lane, one-dimensional; a discrete one starts at 0.
        env_action_space: the environment's own, before it is rescaled, flattened or counted from 0.
        episode_limit: environment steps after which an episode is truncated, if any.
        moves: whether `state` and `restore` take only microseconds a lane.
        failed: with `env.on_error=reset`, [L] the lanes that raised an exception since their last
            reset, whose results are undefined; else None.
    """

    moves: bool
    failed: BoolArray | None
    observation_space: gym.spaces.Box
    action_space: ActionSpace
    env_action_space: ActionSpace
    episode_limit: int | None

    def __len__(self) -> int:
        """The number of lanes, L."""

    def reset(self, seeds: Sequence[int] | None = None, only: IntArray | None = None) -> AnyArray:
        """Starts a new episode in every lane, or in those with the indices `only`.

        Returns the lanes' current observations, [L, *O].

        The first call seeds each lane's random stream. A later call continues the streams, or
        seeds them again from `seeds`, which has one integer a lane.
        """

    def step(self, action: AnyArray, only: IntArray | None = None) -> Step:
        """Applies action[i] ([L, *A], or [L] when discrete) to lane i.

        With `only`, the other lanes do nothing, and their results are undefined.
        """

    def state(self) -> StateArray | None:
        """Everything the lanes' future depends on, one row of bytes per lane: [L, W].

        None if it cannot be saved. Any number of lanes of the same environment can continue from
        any of these rows as these lanes would.
        """

    def restore(self, state: StateArray) -> None:
        """Continues from rows of `state`, [L, W], which may be padded with zeros.

        Raises:
            RestoreError: the environment does not continue as it did before.
        """

    def close(self) -> None:
        """Frees the lanes' resources."""


def supported_actions(space: gym.Space[Any], where: str, fix: str) -> ActionSpace:
    """The space if a policy can act in it; a refusal starts with `where` and ends with `fix`."""
    whole = isinstance(space, gym.spaces.Box) and space.dtype.kind != "f"
    if isinstance(space, ActionSpace) and not whole:
        return space
    raise ConfigError(
        f"{where} has actions {space}; walle takes Discrete, MultiDiscrete and MultiBinary actions,"
        f" and Box actions of real numbers: {fix}"
    )


def discrete(n: int, start: int, dtype: Any) -> gym.spaces.Discrete:
    """The space of the numbers from `start` to `start + n - 1`."""
    more = {} if dtype == np.int64 else {"dtype": np.dtype(dtype).type}  # new in Gymnasium 1.3
    return gym.spaces.Discrete(n, start=start, **more)


def from_zero(space: ActionSpace) -> tuple[ActionSpace, Any, tuple[int, ...] | None]:
    """The space in one dimension, counted from 0.

    Also returns what to add to its actions, and their original shape (None if it stays the same).
    """
    if isinstance(space, gym.spaces.Discrete):
        return discrete(int(space.n), 0, space.dtype), int(space.start), None
    shape = None if len(space.shape) == 1 else space.shape
    if isinstance(space, gym.spaces.MultiDiscrete):
        nvec, dtype = space.nvec.reshape(-1), space.dtype.type
        return gym.spaces.MultiDiscrete(nvec, dtype=dtype), space.start.reshape(-1), shape
    if shape is None:
        return space, 0, None
    if isinstance(space, gym.spaces.MultiBinary):
        return gym.spaces.MultiBinary(math.prod(shape)), 0, shape
    low, high = space.low.reshape(-1), space.high.reshape(-1)
    return gym.spaces.Box(low, high, dtype=space.dtype.type), 0, shape


def numbers_in(info: Any, names: Sequence[str]) -> list[float]:
    """The numbers under `names` in an info; NaN if missing. RolloutError for anything else."""
    numbers = []
    for name in names:
        found = np.asarray(info.get(name) if isinstance(info, Mapping) else None, object)
        value = found.item() if found.size == 1 else found
        if isinstance(value, Real | np.bool_):
            numbers.append(float(value))
        elif value is None or name in SUCCESS:  # `SUCCESS` is recorded unasked
            numbers.append(np.nan)
        else:
            raise RolloutError(
                f"logger.info: {name!r} in the environment's info is {value!r:.60}, not a number: "
                "leave it out, or put a number into info under another name"
            )
    return numbers


def unusable(lanes: Lanes, *results: AnyArray) -> BoolArray:
    """The lanes, [L], that raised an exception, or whose `results`, [L, ...], are not finite."""
    bad = np.zeros(len(lanes), np.bool_) if lanes.failed is None else lanes.failed.copy()
    for values in results:
        bad |= ~np.isfinite(values).reshape(len(bad), -1).all(1)
    return bad


def restart(lanes: Lanes, bad: BoolArray, obs: AnyArray, earlier: Sized = ()) -> list[int]:
    """Starts new episodes in the lanes `bad`, [L], until their rows of `obs`, [L, *O], are usable.

    Returns the lane's index for every start. Raises RolloutError if these starts and `earlier`
    exceed ten per lane on average.
    """
    starts: list[int] = []
    while bad.any():
        starts += np.flatnonzero(bad).tolist()
        if len(earlier) + len(starts) > 10 * len(bad):
            raise RolloutError(
                "env.on_error=reset: the environment fails in the first step of every episode, or "
                "before it: mend the environment"
            )
        obs[bad] = lanes.reset(only=np.flatnonzero(bad))[bad]
        bad = bad & unusable(lanes, obs)
    return starts
