"""A trained policy as a function from observations to actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, overload

import gymnasium as gym
import numpy as np

from walle.envs import EnvSpec
from walle.envs.observations import ObservationRows
from walle.envs.transforms import ActionMap
from walle.errors import ConfigError
from walle.nets.policies import ActingPolicy, memory_of
from walle.sampling.actor import Actor
from walle.types import ActionSpace, AnyArray, FloatArray, ObsLayout, PolicySnapshot, layout_of

Action = AnyArray | np.generic


class Origin(NamedTuple):
    """Where a policy comes from."""

    checkpoint: Path  # the file
    algorithm: str  # the name of the algorithm that learned it
    env_steps: int  # environment steps that it had learned from
    seed: int  # the seed of its run


class Spaces(NamedTuple):
    """The observations that a policy takes, and the actions of its environment.

    `first_action` is added to discrete actions, which policies count from 0.
    """

    observation: gym.spaces.Box
    action: ActionSpace
    first_action: Any = 0


class Policy:
    """A policy with the parameters and the observation normaliser of one checkpoint.

    `walle.load` makes it.

    Attributes:
        origin: where it comes from.
        spec: the environment in which it was trained.
        spaces: the spaces of observations and actions.
        network: the policy's network, a function of its parameters.
        snapshot: the parameters and the normaliser.
        obs_clip: bound of normalised observations; None for no bound.
        rng: draws the noise of actions that are not deterministic; seeded with 0.
    """

    def __init__(
        self,
        network: ActingPolicy,
        snapshot: PolicySnapshot,
        obs_clip: float | None,
        spec: EnvSpec,
        spaces: Spaces,
        origin: Origin,
    ) -> None:
        """Acts as `network` with the parameters of `snapshot` does."""
        self.network, self.snapshot, self.obs_clip = network, snapshot, obs_clip
        self.spec, self.spaces, self.origin = spec, spaces, origin
        self.rng = np.random.default_rng(0)
        self.action_map: ActionMap | None = None
        if isinstance(spaces.action, gym.spaces.Box) and spec.action != "raw":
            self.action_map = ActionMap(spaces.action, rescale=spec.action == "rescale")
        self._actor = self.actor(1)
        self._rows = 1

    def __repr__(self) -> str:
        """The algorithm, the environment, the steps and the file, in one line."""
        steps = f"{self.origin.env_steps:,} steps"
        return (
            f"<Policy of {self.origin.algorithm} on {self.spec.id} after {steps}, "
            f"{self.origin.checkpoint}>"
        )

    @property
    def obs_dim(self) -> int:
        """O, the width of an observation."""
        return int(self.spaces.observation.shape[0])

    @property
    def obs_layout(self) -> ObsLayout:
        """How an observation lies in the row of numbers that the network takes."""
        return layout_of(self.spaces.observation)

    @property
    def state_size(self) -> int:
        """S, the width of the memory; 0 without one."""
        memory = memory_of(self.network)
        return memory.units if memory else 0

    def initial_state(self, lanes: int | None = None) -> FloatArray:
        """The memory with which an episode starts: [S], or [N, S] for N = `lanes` episodes."""
        shape = (self.state_size,) if lanes is None else (lanes, self.state_size)
        return np.zeros(shape, np.float32)

    @overload
    def act(self, obs: Any, *, deterministic: bool = True) -> Action: ...

    @overload
    def act(
        self, obs: Any, state: FloatArray, deterministic: bool = True
    ) -> tuple[Action, FloatArray]: ...

    def act(
        self, obs: Any, state: FloatArray | None = None, deterministic: bool = True
    ) -> Action | tuple[Action, FloatArray]:
        """The actions at raw observations, in the units of the environment.

        Observations are normalised here, and actions rescaled and clipped, as in training. Each
        row of a batch results in the same bits as the observation by itself.

        Args:
            obs: one observation [O], or a batch [N, O], as `env()` returns them. With images, an
                image or a dictionary of the environment, or a batch with one more dimension.
            state: the policy's memory, [S] or [N, S]: `initial_state` where an episode starts, and
                then the result of the previous call. Needed with a memory; without one S is 0.
            deterministic: take the likeliest action; otherwise draw one with `rng`.

        Returns:
            the action, [*A] for one observation (an integer if actions are discrete), [N, *A] for
            a batch. If `state` was given, the action and the next state.

        Raises:
            ConfigError: the observation or the state has another shape, or the state is missing.
        """
        rows, single = self._checked(obs)
        actor = self._actor_of(len(rows))
        actor.state[:] = self._checked_state(state, len(rows), single)
        if deterministic:
            drawn = actor.likeliest(rows)
        else:
            drawn = actor.draw(rows, self.network.noise(self.rng, len(rows)))
        action: Any = self._in_units(drawn)
        following = actor.state.copy()
        if single:
            action, following = action[0], following[0]
        return action if state is None else (action, following)

    def _in_units(self, action: AnyArray) -> AnyArray:
        if self.action_map is not None:
            return self.action_map(action)
        if not isinstance(self.spaces.action, gym.spaces.Box):
            moved: AnyArray = np.add(action, self.spaces.first_action)
            return moved
        return action.copy()

    def _checked(self, obs: Any) -> tuple[AnyArray, bool]:
        """[N, O] observations, and whether one observation was given."""
        if isinstance(self.spaces.observation, ObservationRows):
            return self.spaces.observation.rows(obs)
        try:
            rows = np.asarray(obs, np.float32)
        except (TypeError, ValueError):
            raise ConfigError(
                f"an observation is a {type(obs).__name__}, and {self.spec.id} has observations of "
                f"shape ({self.obs_dim},), as policy.env() returns them: gymnasium.spaces."
                "flatten(space, obs) makes one of an observation of the environment's own space"
            ) from None
        if rows.ndim not in (1, 2) or rows.shape[-1] != self.obs_dim or not rows.size:
            raise ConfigError(
                f"an observation has shape {rows.shape}, and {self.spec.id} has observations of "
                f"shape ({self.obs_dim},): give one of them or a batch [N, {self.obs_dim}], as "
                "policy.env() returns them"
            )
        return np.atleast_2d(rows), rows.ndim == 1

    def _checked_state(self, state: FloatArray | None, rows: int, single: bool) -> FloatArray:
        shape = (self.state_size,) if single else (rows, self.state_size)
        if state is None and self.state_size:
            raise ConfigError(
                "this policy has a memory: begin an episode with state=policy.initial_state() and "
                "pass on what act returns, as in action, state = policy.act(obs, state)"
            )
        if state is not None and np.shape(state) != shape:
            raise ConfigError(
                f"the state has shape {np.shape(state)} where {shape} is needed; "
                "use policy.initial_state() for one episode, initial_state(N) for N"
            )
        return np.zeros(shape, np.float32) if state is None else np.asarray(state, np.float32)

    def _actor_of(self, rows: int) -> Actor:
        if rows != self._rows:
            self._actor, self._rows = self.actor(rows), rows
        return self._actor

    def use(self, snapshot: PolicySnapshot) -> None:
        """Acts with the parameters and the normaliser of another snapshot."""
        self.snapshot = snapshot
        self._actor.load(snapshot)

    def actor(self, lanes: int) -> Actor:
        """The policy as it acts in that many lanes, whose actions are not yet rescaled."""
        actor = Actor(self.network, self.obs_dim, lanes, self.obs_clip)
        actor.load(self.snapshot)
        return actor

    def env(self, render_mode: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
        """A Gymnasium environment like the one that it was trained in, for one episode at a time.

        It repeats actions, limits episodes and appends the clock as in training, and takes the
        actions of `act`. Observations with images are the environment's own. With equal seeds it
        returns the observations of a lane; but with `env.backend=envpool` it is Gymnasium's task of
        the same id.

        Args:
            render_mode: such as "rgb_array" or "human", if the environment has it.
            kwargs: further arguments of the environment, which replace those of the run.

        Raises:
            ConfigError: the environment does not exist, refuses its arguments, or cannot be drawn
                off screen here.
        """
        from walle.envs.single import make_single

        if render_mode is None:
            return make_single(self.spec, pack=False, **kwargs)
        env = make_single(self.spec, pack=False, render_mode=render_mode, **kwargs)
        if render_mode != "human":
            from walle.policy.drawing import prepare_drawing

            prepare_drawing(env)
        return env
