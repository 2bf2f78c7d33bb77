"""The types of every setting; the YAML files under conf/ hold the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class EnvConfig:
    """conf/env/."""

    name: str
    id: str
    kwargs: dict[str, Any]
    backend: str
    frame_skip: int
    episode_limit: int | None
    action: str
    time_feature: bool


@dataclass
class SlowEnvConfig(EnvConfig):
    """conf/env/slow.yaml."""

    step_ms: float


@dataclass
class NetConfig:
    """conf/net/."""

    name: str
    policy_hidden: list[int]
    critic_hidden: list[int]
    activation: str
    scale: str
    log_std: float


@dataclass
class GRUConfig(NetConfig):
    """conf/net/gru.yaml."""

    hidden: int
    sequence: int


@dataclass
class SamplerConfig:
    """conf/sampler/. `n` and `lanes` are None only before `validate` has chosen them."""

    name: str
    n: int | None
    lanes: int | None
    collect: str
    max_lag: int | None
    slots: int | None
    pin: bool


@dataclass
class LearnerConfig:
    """conf/learner/."""

    n: int
    threads: int


@dataclass
class LoggerConfig:
    """conf/logger/."""

    name: str
    return_window: int
    progress: str
    print_every_s: float


@dataclass
class WandbConfig(LoggerConfig):
    """conf/logger/wandb.yaml."""

    project: str
    entity: str | None
    group: str | None
    mode: str


@dataclass
class EvalConfig:
    """The `eval` keys of conf/config.yaml."""

    every: int | None
    episodes: int


@dataclass
class CheckpointConfig:
    """The `checkpoint` keys of conf/config.yaml."""

    every: int | None


@dataclass
class Config:
    """A whole run. `algo` is the chosen algorithm's own settings."""

    algo: Any
    env: EnvConfig
    net: NetConfig
    sampler: SamplerConfig
    learner: LearnerConfig
    logger: LoggerConfig
    eval: EvalConfig
    checkpoint: CheckpointConfig
    name: str | None
    seed: int
    total_steps: int
    batch_size: int
    device: str
    trace: bool

    @property
    def n(self) -> int:
        """The number of samplers."""
        assert self.sampler.n is not None
        return self.sampler.n

    @property
    def lanes(self) -> int:
        """The number of lanes of all samplers together."""
        assert self.sampler.lanes is not None
        return self.sampler.lanes

    @property
    def whole_episodes(self) -> bool:
        """Whether rounds are made of whole episodes."""
        return self.sampler.collect == "episodes"

    @property
    def rounds_vary(self) -> bool:
        """Whether rounds differ in their number of steps."""
        return self.whole_episodes or self.largest_batch is not None

    @property
    def largest_batch(self) -> int | None:
        """Where the algorithm changes the size of rounds: the largest there can be; else None."""
        most: int | None = getattr(self.algo, "largest_batch", None)
        return None if most is None else max(most, self.batch_size)


GROUPS: dict[str, type] = {
    "env": EnvConfig,
    "net": NetConfig,
    "sampler": SamplerConfig,
    "learner": LearnerConfig,
    "logger": LoggerConfig,
    "eval": EvalConfig,
    "checkpoint": CheckpointConfig,
}
VARIANTS: dict[tuple[str, str], type] = {  # by group and name
    ("env", "slow"): SlowEnvConfig,
    ("net", "gru"): GRUConfig,
    ("logger", "wandb"): WandbConfig,
}
