"""Networks made from the settings of the `net` group and the spaces of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium as gym

from walle.errors import ConfigError
from walle.nets.mlp import OwnNet, activation
from walle.nets.policies import (
    ActingPolicy,
    BernoulliPolicy,
    CategoricalPolicy,
    GaussianPolicy,
    MultiCategoricalPolicy,
    StateScalePolicy,
    StochasticPolicy,
)
from walle.types import LEAST_PIXELS, ActionSpace, ObsLayout, layout_of

if TYPE_CHECKING:
    from walle.nets.critics import Critic, QFunctions
    from walle.nets.encoders import Encoder
    from walle.nets.own import OwnFactory

# Acting imports this file, and few policies need the other networks: methods import them.


class HasSpaces(Protocol):
    """The spaces of a lane; `algos.base.Problem` and `PolicySpec` have them."""

    @property
    def observation_space(self) -> gym.spaces.Box:
        """The observations, one-dimensional."""

    @property
    def action_space(self) -> ActionSpace:
        """The actions of the policy: before they are rescaled, discrete ones from 0."""

    @property
    def obs_dim(self) -> int:
        """O, the width of an observation."""

    @property
    def obs_layout(self) -> ObsLayout:
        """How an observation lies in a row."""


class Memory(NamedTuple):
    """A memory: its units, and the steps of the sequences from which it learns."""

    units: int
    sequence: int


class NetSettings(NamedTuple):
    """The `net` group."""

    policy_hidden: tuple[int, ...]  # widths of the policy's hidden layers
    critic_hidden: tuple[int, ...]  # widths of the critic's hidden layers
    activation: str  # the function between layers
    log_std: float  # initial log standard deviation of a Gaussian policy
    memory: Memory | None = None  # the memory that policy and critic share; None without one
    # "constant" makes a Gaussian's standard deviation a parameter, "state" a function of the state
    scale: str = "constant"
    own: OwnFactory | None = None  # makes a net of the user's own, see `nets.own`; None without one
    image_features: int = 0  # features of each image, if the observations have images; else 0

    @classmethod
    def of(cls, net: Any) -> NetSettings:
        """Reads the `net` group of a configuration."""
        own = None
        if ":" in net.name:
            from walle.nets.own import OwnFactory, own_class

            own = OwnFactory(net.name, own_class(net.name), net)
        return cls(
            tuple(net.policy_hidden),
            tuple(net.critic_hidden),
            net.activation,
            net.log_std,
            Memory(net.hidden, net.sequence) if net.name == "gru" else None,
            net.scale,
            own,
            net.image_features if net.name == "cnn" else 0,
        )

    def values(self) -> dict[str, Any]:
        """The settings as numbers, texts and lists, from which `from_values` makes them again."""
        own = self.own and {"path": self.own.path, "settings": asdict(self.own.settings)}
        return {**self._asdict(), "memory": self.memory and list(self.memory), "own": own}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> NetSettings:
        """The settings of `values`.

        Raises:
            ConfigError: the class of a net of the user's own cannot be imported, or another
                version of walle wrote the values.
        """
        if unknown := sorted(values.keys() - set(cls._fields)):
            raise ConfigError(
                f"the checkpoint has settings of networks that this version of walle does not have"
                f" ({', '.join(unknown)}); use the version that wrote it"
            )
        settings = dict(values)
        for name in ("policy_hidden", "critic_hidden"):
            settings[name] = tuple(values[name])
        if values["memory"] is not None:
            settings["memory"] = Memory(*values["memory"])
        if values["own"] is not None:
            from walle.nets.own import OwnFactory

            settings["own"] = OwnFactory.from_values(**values["own"])
        return cls(**settings)

    def encoder(self, spaces: HasSpaces) -> Encoder | None:
        """Makes the convolutions that see images; None without images.

        Raises:
            ConfigError: the observations have images and the net no convolutions, or vice versa.
        """
        images = spaces.obs_layout.images
        if images and not self.image_features:
            shapes = " and ".join("x".join(map(str, image.shape)) for image in images)
            raise ConfigError(
                f"the environment's observations have images ({shapes}), and this net sees vectors"
                " only; use net=cnn"
            )
        if self.image_features and not images:
            raise ConfigError(
                "net=cnn needs images, but the environment's observations are "
                f"{spaces.observation_space}: an image is a Box of uint8 from 0 to 255 with two or"
                f" three dimensions, {LEAST_PIXELS} pixels a side at least; use net=mlp"
            )
        if not images:
            return None
        from walle.nets.encoders import Encoder

        return Encoder(spaces.obs_layout, self.image_features)

    def features(self, spaces: HasSpaces) -> int:
        """F, the width of the layers' input: of images' features, a memory, an own net, or O."""
        encoder, own = self.encoder(spaces), self.own_net(spaces)
        if own is not None:
            return own.features
        return encoder.width if encoder else self.state_size or spaces.obs_dim

    def check_own(self, spaces: HasSpaces) -> None:
        """Tries the user's own net, if there is one, on observations of the environment's space.

        Raises:
            ConfigError: it lacks a part, or does not do what it must.
        """
        if self.own is not None:
            from walle.nets.own import check_net

            self.encoder(spaces)  # refuses images
            if self.own.networks is None:
                check_net(self.own, spaces.observation_space)

    def own_net(self, spaces: HasSpaces) -> OwnNet | None:
        """Makes the user's own net before the layers; None without one.

        Raises:
            ConfigError: the user's own net makes whole networks instead.
        """
        if self.own is not None and self.own.networks is not None:
            raise ConfigError(
                f"net.name={self.own.path!r} makes policies and state-value functions of on-policy"
                " algorithms only; use one of these, or net=mlp"
            )
        return None if self.own is None else self.own(spaces.obs_dim)

    @property
    def state_size(self) -> int:
        """S, the width of the memory; 0 without one."""
        return 0 if self.memory is None else self.memory.units

    def policy_factory(
        self, spaces: HasSpaces, kind: str = "stochastic", exploration: float = 0.0
    ) -> PolicySpec:
        """The description of a policy, which makes it when it is called; picklable.

        Args:
            spaces: of a lane.
            kind: see `PolicySpec`.
            exploration: of a deterministic policy.
        """
        return PolicySpec(kind, self, spaces.observation_space, spaces.action_space, exploration)

    def has_log_std(self, space: gym.Space[Any]) -> bool:
        """Whether a policy for actions of `space` has log standard deviations as parameters."""
        whole = self.own is not None and self.own.networks is not None
        return isinstance(space, gym.spaces.Box) and self.scale == "constant" and not whole

    def critic(self, spaces: HasSpaces) -> Critic:
        """Makes the state-value function."""
        from walle.nets.critics import Critic

        if self.own is not None and self.own.networks is not None:
            space = spaces.action_space
            own_critic: Critic = self.own.networks.critic(self.own.settings, spaces.obs_dim, space)
            return own_critic
        layers = (self.critic_hidden, activation(self.activation))
        return Critic(self.features(spaces), *layers, self.own_net(spaces))

    def q_functions(self, spaces: HasSpaces, actions: int, count: int) -> QFunctions:
        """Makes `count` action-value functions of actions with `actions` entries."""
        from walle.nets.critics import QFunctions

        layers = (self.critic_hidden, activation(self.activation))
        width, own = self.features(spaces), self.own_net(spaces)
        return QFunctions(width, actions, *layers, count, own)


class PolicySpec(NamedTuple):
    """A policy as plain values and spaces; calling it makes the policy. Picklable."""

    # "stochastic" for on-policy learning; "squashed" (SAC) and "deterministic" (DDPG, TD3) for
    # continuous actions in [-1, 1]; "epsilon_greedy" (DQN) for discrete ones
    kind: str
    net: NetSettings  # settings of the networks
    observation_space: gym.spaces.Box  # of one lane
    action_space: ActionSpace  # of the policy
    exploration: float = 0.0  # standard deviation of a deterministic policy's noise

    @property
    def obs_dim(self) -> int:
        """O, the width of an observation."""
        return int(self.observation_space.shape[0])

    @property
    def obs_layout(self) -> ObsLayout:
        """How an observation lies in a row."""
        return layout_of(self.observation_space)

    def values(self) -> dict[str, Any]:
        """All but the spaces as numbers, texts and lists, as a checkpoint stores them."""
        return {"kind": self.kind, "net": self.net.values(), "exploration": self.exploration}

    def __call__(self) -> Any:
        """Makes the policy; see `make_policy`."""
        return make_policy(self)


def make_policy(spec: PolicySpec) -> ActingPolicy:
    """The policy that `spec` describes, without parameters.

    Raises:
        ConfigError: the net does not fit the spaces.
    """
    net, space = spec.net, spec.action_space
    if spec.kind == "stochastic" and net.own is not None and net.own.networks is not None:
        return net.own.networks.policy(net.own.settings, spec.obs_dim, space)
    encoder, own, width = net.encoder(spec), net.own_net(spec), net.features(spec)
    layers = (net.policy_hidden, activation(net.activation))
    if spec.kind == "epsilon_greedy":
        from walle.nets.replay_policies import EpsilonGreedyPolicy

        assert isinstance(space, gym.spaces.Discrete)
        return EpsilonGreedyPolicy(encoder, width, int(space.n), *layers, own)
    if spec.kind in ("squashed", "deterministic"):
        from walle.nets.replay_policies import (
            DeterministicPolicy,
            RandomFirst,
            SquashedGaussianPolicy,
        )

        assert isinstance(space, gym.spaces.Box)
        size = int(space.shape[0])
        if spec.kind == "squashed":
            squashed = SquashedGaussianPolicy(width, size, *layers, own)
            return RandomFirst(squashed, size)
        policy = DeterministicPolicy(width, size, *layers, spec.exploration, own)
        return RandomFirst(policy, size)
    readout = _stochastic_policy(net, space, width, own)
    if encoder:
        from walle.nets.encoders import EncodedPolicy

        return EncodedPolicy(encoder, readout)
    if net.memory:
        from walle.nets.recurrent import GRUPolicy

        return GRUPolicy(spec.obs_dim, net.memory.units, readout)
    return readout


def _stochastic_policy(
    net: NetSettings, space: ActionSpace, width: int, own: OwnNet | None
) -> StochasticPolicy:
    layers = (net.policy_hidden, activation(net.activation))
    if isinstance(space, gym.spaces.Box):
        make = StateScalePolicy if net.scale == "state" else GaussianPolicy
        return make(width, int(space.shape[0]), *layers, net.log_std, own)
    if net.scale == "state":
        raise ConfigError(
            "net.scale=state with discrete actions, which have no scale; use net.scale=constant"
        )
    if isinstance(space, gym.spaces.Discrete):
        return CategoricalPolicy(width, int(space.n), *layers, own)
    if isinstance(space, gym.spaces.MultiBinary):
        return BernoulliPolicy(width, int(space.shape[0]), *layers, own)
    return MultiCategoricalPolicy(width, space.nvec.tolist(), *layers, own)
