"""A net of one's own: an encoder before the layers of the policy and of every critic."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from walle.config.schemas import NetConfig
from walle.errors import positive
from walle.nets.mlp import Params


@dataclass(kw_only=True)
class WavesConfig(NetConfig):
    """Settings of `Waves`, besides those of every net."""

    waves: int = positive(default=16)
    frequency: float = positive(default=2.0)


class Waves:
    """Sines and cosines of observations, whose frequencies are learned (Rahimi & Recht 2007)."""

    settings = WavesConfig

    def __init__(self, settings: WavesConfig, obs_dim: int) -> None:
        """Knows the shapes of its parameters, and holds none."""
        self.features = 2 * settings.waves
        self.shapes = {"weight": (settings.waves, obs_dim)}
        self._frequency = settings.frequency

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Normal frequencies."""
        drawn = torch.randn(self.shapes["weight"], generator=generator)
        return {"weight": self._frequency * drawn}

    def __call__(self, params: Params, obs: Tensor) -> Tensor:
        """[..., O] -> [..., 2 x waves]."""
        phase = functional.linear(obs, params["weight"])
        return torch.cat((torch.sin(phase), torch.cos(phase)), -1)
