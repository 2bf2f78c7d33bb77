"""The type and the bound of every setting but `algo`'s; the YAML files in conf/ have defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

from walle.errors import matching, not_negative, one_of, positive, within
from walle.types import Lag


@dataclass(kw_only=True)
class EnvConfig:
    """Settings in conf/env/."""

    name: str
    id: str
    kwargs: dict[str, Any]
    wrappers: list[Any]
    backend: str = one_of("auto", "mujoco", "gymnasium", "envpool")
    frame_skip: int = positive()
    episode_limit: int | None = positive()
    action: str = one_of("rescale", "clip", "raw")
    action_low: Any
    action_high: Any
    time_feature: bool
    policy_keys: list[str] | None
    critic_keys: list[str] | None
    on_error: str = one_of("stop", "reset")
    reset_options: dict[str, Any]


@dataclass(kw_only=True)
class SlowEnvConfig(EnvConfig):
    """Settings in conf/env/slow.yaml."""

    step_ms: float = positive()
    step_ms_std: float = not_negative()


@dataclass(kw_only=True)
class NetConfig:
    """Settings in conf/net/."""

    name: str  # one of `NETS`, or module:Class
    policy_hidden: list[int] = positive()
    critic_hidden: list[int] = positive()
    activation: str
    scale: str = one_of("constant", "state")
    log_std: float


@dataclass(kw_only=True)
class GRUConfig(NetConfig):
    """Settings in conf/net/gru.yaml."""

    hidden: int = positive()
    sequence: int = positive()


@dataclass(kw_only=True)
class CNNConfig(NetConfig):
    """Settings in conf/net/cnn.yaml."""

    image_features: int = positive()


@dataclass(kw_only=True)
class SamplerConfig:
    """Settings that all files in conf/sampler/ have; `validate` replaces None in `lanes`."""

    name: str = one_of("process", "serial", "ray")
    lanes: int | None = positive()
    collect: str = one_of("fixed", "episodes")
    pin: bool
    timeout_s: float | None = within("(0, 1e6]", example=600)


@dataclass(kw_only=True)
class SerialSampler(SamplerConfig):
    """Settings in conf/sampler/serial.yaml; the constants hold for every serial sampler."""

    n: ClassVar[int] = 1
    max_lag: ClassVar[int] = 0
    slots: ClassVar[int] = 1
    lag: ClassVar[Lag] = Lag(0)


@dataclass(kw_only=True)
class ManySamplers(SamplerConfig):
    """Settings of samplers in separate processes."""

    max_lag: int | None
    restarts: int = not_negative()

    @property
    def lag(self) -> Lag:
        """The allowed lag of the samplers."""
        return Lag(self.max_lag)


@dataclass(kw_only=True)
class ProcessSampler(ManySamplers):
    """Settings in conf/sampler/process.yaml; `validate` replaces None in `n` and `slots`."""

    n: int | None = positive()
    slots: int | None = positive()
    balance: bool


@dataclass(kw_only=True)
class RaySampler(ManySamplers):
    """Settings in conf/sampler/ray.yaml."""

    n: ClassVar[None] = None  # the nodes decide
    balance: ClassVar[bool] = False
    address: str | None
    nodes: int | None = positive()
    per_node: int | None = positive()
    mismatch: str = one_of("error", "warn")

    @property
    def slots(self) -> int:
        """The number of slots of each sampler."""
        return self.lag.slots


@dataclass(kw_only=True)
class LearnerConfig:
    """Settings in conf/learner/."""

    n: int | None = positive()
    shards: int | None = positive()
    restarts: int = not_negative()
    threads: int = positive()


@dataclass(kw_only=True)
class LoggerConfig:
    """Settings in conf/logger/."""

    name: str = one_of("files", "tensorboard", "wandb")
    return_window: int = positive()
    info: list[str]
    progress: str = one_of("auto", "bar", "lines", "quiet")
    print_every_s: float = within("(0, 1e6]", example=10)
    video_every: int | None = positive()
    video_steps: int | None = positive()
    tensorboard: bool = False

    @property
    def names(self) -> list[str]:
        """The loggers besides the files: logger=[tensorboard,wandb] has both, in either order."""
        both = {"tensorboard": self.tensorboard, "wandb": isinstance(self, WandbConfig)}
        return [name for name, chosen in both.items() if chosen or name == self.name]

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the logger's library: the settings that other loggers lack."""
        shared = {field.name for field in fields(LoggerConfig)}
        return {name: value for name, value in vars(self).items() if name not in shared}


@dataclass(kw_only=True)
class WandbConfig(LoggerConfig):
    """Settings in conf/logger/wandb.yaml."""

    project: str = matching(r"[^/\\#?%:]{1,128}", "needs 1 to 128 characters, none of / \\ # ? % :")
    entity: str | None
    group: str | None
    tags: list[str] = matching(".{1,64}", "needs 1 to 64 characters in each")
    mode: str = one_of("online", "offline", "disabled")


@dataclass(kw_only=True)
class EvalConfig:
    """The `eval` keys of conf/config.yaml."""

    every: int | None = positive()
    episodes: int = not_negative()
    stochastic: bool


@dataclass(kw_only=True)
class CheckpointConfig:
    """The `checkpoint` keys of conf/config.yaml."""

    every: int | None = positive()


@dataclass(kw_only=True)
class TopLevel:
    """The keys of conf/config.yaml that belong to no group."""

    name: str | None
    seed: int = not_negative()
    resume: str | None
    start_from: str | None
    total_steps: int = positive()
    schedule_steps: int | None = positive()
    batch_size: int = positive()
    device: str
    trace: bool
    callbacks: list[str]
    objective: str = one_of("eval", "best", "return", "steps_per_s", "wall_s")


@dataclass(kw_only=True)
class Config(TopLevel):
    """All settings of a run; `algo` is an instance of the algorithm's settings."""

    algo: Any
    env: EnvConfig
    net: NetConfig
    sampler: SerialSampler | ProcessSampler | RaySampler
    learner: LearnerConfig
    logger: LoggerConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig

    @property
    def n(self) -> int:
        """The number of samplers on this machine; 0 if they run on the nodes of a cluster."""
        return self.sampler.n or 0

    @property
    def lanes(self) -> int:
        """The number of lanes of all samplers together."""
        assert self.sampler.lanes is not None
        return self.sampler.lanes

    @property
    def slots(self) -> int:
        """The number of slots of each sampler."""
        assert self.sampler.slots is not None
        return self.sampler.slots

    @property
    def learners(self) -> int:
        """The number of learners, the agent included."""
        assert self.learner.n is not None
        return self.learner.n

    @property
    def shards(self) -> int:
        """The number of parts of a minibatch."""
        assert self.learner.shards is not None
        return self.learner.shards

    @property
    def whole_episodes(self) -> bool:
        """Whether rounds have whole episodes."""
        return self.sampler.collect == "episodes"

    @property
    def rounds_vary(self) -> bool:
        """Whether rounds differ in their number of steps."""
        return self.whole_episodes or self.largest_batch is not None

    @property
    def largest_batch(self) -> int | None:
        """The most environment steps in a round; None if all rounds have the same size."""
        most: int | None = self.algo.largest_batch
        return None if most is None else max(most, self.batch_size)


GROUPS: dict[str, type] = {
    "env": EnvConfig,
    "net": NetConfig,
    "sampler": ProcessSampler,
    "learner": LearnerConfig,
    "logger": LoggerConfig,
    "eval": EvalConfig,
    "checkpoint": CheckpointConfig,
}
NETS = ("mlp", "mlp256", "gru", "cnn")
VARIANTS: dict[tuple[str, str], type] = {  # by group and name
    ("env", "slow"): SlowEnvConfig,
    ("net", "gru"): GRUConfig,
    ("net", "cnn"): CNNConfig,
    ("logger", "wandb"): WandbConfig,
    ("sampler", "serial"): SerialSampler,
    ("sampler", "ray"): RaySampler,
}
LACKS = {  # by sampler: settings of other samplers that it cannot have, and why
    "serial": {
        "n": "has one sampler; drop it, or use sampler=process",
        "max_lag": "cannot overlap collecting with learning; drop it, or use sampler=process",
        "slots": "has no queue; drop it",
        "restarts": "has no process to replace; drop it",
        "balance": "has one sampler; drop it",
    },
    "ray": {
        "n": "has as many as its nodes provide; use sampler.per_node={} for so many on each",
        "slots": "always has sampler.max_lag + 1; drop it",
        "balance": "assigns equally many lanes to the samplers of all nodes; drop it",
    },
}
