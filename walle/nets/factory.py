"""Networks made from the settings of the `net` group and the spaces of an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium as gym

from walle.errors import ConfigError
from walle.nets import policies
from walle.nets.mlp import Columns, OwnNet, activation
from walle.types import SMALLEST, ActionSpace, layout_of

if TYPE_CHECKING:
    from walle.nets.critics import Critic, QFunctions
    from walle.nets.features import Encoder
    from walle.nets.own import OwnFactory, OwnNetworks

# Acting needs this file, but few policies need the other networks: methods import those.


class HasSpaces(Protocol):
    """The spaces of a lane; `algos.base.Problem` and `PolicySpec` have them."""

    @property
    def observation_space(self) -> gym.spaces.Box:
        """The observations, one-dimensional."""

    @property
    def action_space(self) -> ActionSpace:
        """The policy's actions: not yet rescaled; discrete ones count from 0."""


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
        """The settings as numbers, texts and lists, from which `from_values` rebuilds them."""
        own = self.own and {"path": self.own.path, "settings": asdict(self.own.settings)}
        return {**self._asdict(), "memory": self.memory and list(self.memory), "own": own}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> NetSettings:
        """The settings with these `values()`; refuses keys of another version of walle."""
        if unknown := sorted(values.keys() - set(cls._fields)):
            raise ConfigError(
                "the checkpoint has settings of networks that this version of walle does not have"
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

    @property
    def state_size(self) -> int:
        """S, the width of the memory; 0 without one."""
        return self.memory.units if self.memory else 0

    @property
    def networks(self) -> OwnNetworks | None:
        """The user's class, if it makes whole networks."""
        return self.own.networks if self.own else None

    def check_own(self, spaces: HasSpaces) -> None:
        """Tries the user's net, if there is one, on observations; refuses a faulty net."""
        if self.own is not None:
            from walle.nets.own import check_net

            self.encoder(spaces)  # refuses images
            if self.networks is None:
                check_net(self.own, spaces.observation_space)
            elif any(layout_of(spaces.observation_space)[2:]):
                raise ConfigError(
                    f"env.critic_keys with whole networks, {self.own.path}; use net=mlp"
                )

    def encoder(self, spaces: HasSpaces) -> Encoder | None:
        """Makes the convolutions of net=cnn; refuses it without images, and other nets with any."""
        layout = layout_of(spaces.observation_space)
        if layout.images and not self.image_features:
            shapes = " and ".join("x".join(map(str, image.shape)) for image in layout.images)
            raise ConfigError(
                f"the environment's observations have images ({shapes}), and this net sees vectors"
                " only; use net=cnn"
            )
        if not self.image_features:
            return None
        if not layout.images:
            raise ConfigError(
                "net=cnn needs images, but the environment's observations are "
                f"{spaces.observation_space}: an image is a Box of two dimensions of bytes, or "
                f"three of any bounded numbers, {SMALLEST} pixels a side at least; use net=mlp, "
                "or wrappers that keep images, such as {name: TimeAwareObservation, flatten: false}"
            )
        from walle.nets.features import Encoder

        return Encoder(layout, self.image_features)

    def inputs(
        self, spaces: HasSpaces, *, critic: bool = False
    ) -> tuple[int, OwnNet | None, Encoder | None]:
        """The width of the input of a policy's or critic's layers, and what computes the input."""
        if self.own is not None and self.networks:
            raise ConfigError(
                f"net.name={self.own.path!r} makes policies and state-value functions of on-policy"
                " algorithms only; use one of these, or net=mlp"
            )
        encoder, layout = self.encoder(spaces), layout_of(spaces.observation_space)
        if layout.policy_only and self.memory:
            raise ConfigError("net=gru is shared: env.critic_keys must have all keys of the policy")
        width = self.memory.units + layout.critic_only if self.memory else layout.width
        width = encoder.width if encoder else width
        begin, end = (layout.policy_only, width) if critic else (0, width - layout.critic_only)
        own: OwnNet | None = self.own(end - begin) if self.own else None
        if end - begin < width:
            own = Columns(begin, end, own)
        return own.features if own else width, own, encoder

    def policy_factory(
        self, spaces: HasSpaces, kind: str = "stochastic", exploration: float = 0.0
    ) -> PolicySpec:
        """The description of a policy for a lane's spaces; calling it makes the policy."""
        return PolicySpec(kind, self, spaces.observation_space, spaces.action_space, exploration)

    def has_log_std(self, space: gym.Space[Any]) -> bool:
        """Whether a policy for actions of `space` has log standard deviations as parameters."""
        is_gaussian = isinstance(space, gym.spaces.Box) and not self.networks
        return is_gaussian and self.scale == "constant"

    def critic(self, spaces: HasSpaces) -> Critic:
        """Makes the state-value function."""
        from walle.nets.critics import Critic

        if self.own is not None and self.networks:
            width, space = int(spaces.observation_space.shape[0]), spaces.action_space
            own_critic: Critic = self.networks.critic(self.own.settings, width, space)
            return own_critic
        width, own, _ = self.inputs(spaces, critic=True)
        layers = (self.critic_hidden, activation(self.activation, critic=True))
        return Critic(width, *layers, own)

    def q_functions(
        self, spaces: HasSpaces, actions: int, count: int, outputs: int = 1
    ) -> QFunctions:
        """Makes `count` action-value functions of actions with `actions` entries."""
        from walle.nets.critics import QFunctions

        width, own, _ = self.inputs(spaces, critic=True)
        layers = (self.critic_hidden, activation(self.activation, critic=True))
        return QFunctions(width, actions, *layers, count, own, outputs)


class PolicySpec(NamedTuple):
    """A policy as plain values and spaces; calling it makes the policy. Picklable."""

    # "stochastic" for on-policy learning; "squashed" (SAC) and "deterministic" (DDPG, TD3) for
    # continuous actions in [-1, 1]; "epsilon_greedy" (DQN) for discrete ones
    kind: str
    net: NetSettings  # settings of the networks
    observation_space: gym.spaces.Box  # of one lane
    action_space: ActionSpace  # of the policy
    exploration: float = 0.0  # standard deviation of a deterministic policy's noise

    def values(self) -> dict[str, Any]:
        """Everything but the spaces, as the numbers, texts and lists that a checkpoint stores."""
        return {"kind": self.kind, "net": self.net.values(), "exploration": self.exploration}

    def __call__(self) -> Any:
        """Makes the policy, an `ActingPolicy`; refuses a net that does not fit the spaces."""
        net, space = self.net, self.action_space
        obs_dim = int(self.observation_space.shape[0])
        if self.kind == "stochastic" and net.own is not None and net.networks:
            return net.networks.policy(net.own.settings, obs_dim, space)
        width, own, encoder = net.inputs(self)
        is_values = self.kind == "epsilon_greedy"
        layers = (net.policy_hidden, activation(net.activation, critic=is_values))
        if self.kind != "stochastic":
            from walle.nets import replay_policies as replay

            if self.kind == "epsilon_greedy":
                assert isinstance(space, gym.spaces.Discrete)
                return replay.EpsilonGreedyPolicy(encoder, width, int(space.n), *layers, own)
            assert isinstance(space, gym.spaces.Box)
            size = int(space.shape[0])
            if self.kind == "squashed":
                squashed = replay.SquashedGaussianPolicy(width, size, *layers, own)
                return replay.RandomFirst(squashed, size)
            policy = replay.DeterministicPolicy(width, size, *layers, self.exploration, own)
            return replay.RandomFirst(policy, size)
        readout: policies.StochasticPolicy
        if isinstance(space, gym.spaces.Box):
            state = net.scale == "state"
            make = policies.StateScalePolicy if state else policies.GaussianPolicy
            readout = make(width, int(space.shape[0]), *layers, net.log_std, own)
        elif net.scale == "state":
            raise ConfigError(
                "net.scale=state with discrete actions, which have no scale; use net.scale=constant"
            )
        elif isinstance(space, gym.spaces.Discrete):
            readout = policies.CategoricalPolicy(width, int(space.n), *layers, own)
        elif isinstance(space, gym.spaces.MultiBinary):
            readout = policies.BernoulliPolicy(width, int(space.shape[0]), *layers, own)
        else:
            readout = policies.MultiCategoricalPolicy(width, space.nvec.tolist(), *layers, own)
        if encoder:
            return policies.FeaturePolicy(readout, encoder=encoder)
        if net.memory:
            from walle.nets.features import GRU

            inputs = obs_dim - layout_of(self.observation_space).critic_only
            return policies.FeaturePolicy(readout, memory=GRU("memory", inputs, net.memory.units))
        return readout
