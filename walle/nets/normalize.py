"""Running moments, and the normalisers of observations and rewards."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from walle.types import NO_LANE, AnyArray, BoolArray, FloatArray, IntArray, unique_lane_groups

Float64Array = npt.NDArray[np.float64]
# the mean of a batch of samples, and the sum of their squared deviations from it
Moments = tuple[Float64Array, Float64Array]
_AT_ONCE = 1 << 18  # numbers of a block, 2 MB in float64


def batch_moments(samples: AnyArray) -> Moments:
    """The moments of [N, *shape], N >= 1; each result is [*shape].

    The squares of wide rows are summed a block at a time, with the sum so far as the block's first
    row. The order of additions is that of one sum over all rows, so the sum has the same bits, and
    its terms stay in the cache.
    """
    mean = samples.mean(0, dtype=np.float64)
    rows = max(1, _AT_ONCE // max(1, mean.size))
    if mean.size < 2 or len(samples) <= rows:  # a single column is added in another order
        return mean, np.asarray(np.square(np.subtract(samples, mean)).sum(0))
    block: Float64Array = np.zeros((1 + rows, *mean.shape))
    for begin in range(0, len(samples), rows):
        part = samples[begin : begin + rows]
        terms = block[1 : 1 + len(part)]
        np.square(np.subtract(part, mean, out=terms), out=terms)
        block[0] = block[: 1 + len(part)].sum(0)
    return mean, np.array(block[0])


class RunningMoments:
    """Mean and variance of all samples seen, merged batch by batch.

    Chan, Golub & LeVeque (1983), "Algorithms for computing the sample variance", eq. 2.1.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Moments of samples of `shape`: mean 0 and variance 1 before the first sample."""
        self.count = 0
        # As NumPy's sums do, the index makes an array without axes a scalar.
        self.mean: Float64Array = np.zeros(shape)[()]
        self._m2: Float64Array = np.zeros(shape)[()]

    def update(self, samples: AnyArray) -> None:
        """Adds the samples [N, *shape], N >= 1."""
        x = np.asarray(samples)
        batch_mean, batch_m2 = batch_moments(x)
        delta, total = batch_mean - self.mean, self.count + len(x)
        self._m2 = self._m2 + batch_m2 + np.square(delta) * (self.count * len(x) / total)
        self.mean = self.mean + delta * (len(x) / total)
        self.count = total

    @property
    def variance(self) -> Float64Array:
        """Population variance; 1 before the first sample."""
        return self._m2 / self.count if self.count else np.ones_like(self._m2)

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"count": self.count, "mean": self.mean.copy(), "m2": self._m2.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self.count = state["count"]
        self.mean, self._m2 = (np.asarray(state[name]).copy()[()] for name in ("mean", "m2"))


class ObservationNormalizer(RunningMoments):
    """Moments for (obs - mean) / std. Only `update` changes them; samplers get a frozen copy."""

    def __init__(self, obs_dim: int, *, enabled: bool) -> None:
        """Keeps mean 0 and variance 1 unless `enabled`."""
        super().__init__((obs_dim,))
        self.enabled = enabled

    def update(self, samples: AnyArray) -> None:
        """Adds raw observations [..., O]."""
        if self.enabled:
            super().update(samples.reshape(-1, samples.shape[-1]))

    def frozen(self) -> tuple[FloatArray, FloatArray]:
        """Mean and reciprocal standard deviation, [O] each, as a snapshot carries them."""
        inv_std = (1 / np.sqrt(self.variance + 1e-8)).astype(np.float32)
        return self.mean.astype(np.float32), inv_std


def normalize_into(
    out: FloatArray, obs: AnyArray, mean: FloatArray, inv_std: FloatArray, clip: float | None
) -> None:
    """Writes (obs - mean) x inv_std into `out`, within [-clip, clip] unless `clip` is None.

    It allocates nothing, and `out` may be `obs`.
    """
    np.subtract(obs, mean, out=out)
    np.multiply(out, inv_std, out=out)
    if clip is not None:
        np.maximum(out, -clip, out=out)
        np.minimum(out, clip, out=out)


class RewardNormalizer:
    """Divides rewards by the running standard deviation of the discounted return.

    Per lane R_t = gamma R_(t-1) + r_t, from zero at the start of an episode; no mean is
    subtracted, so signs stay (Engstrom et al. 2020, "Implementation matters", section 3).
    """

    def __init__(self, lanes: int, gamma: float, *, enabled: bool) -> None:
        """`lanes` counts the lanes of the whole run; unless `enabled`, rewards stay unchanged."""
        self.enabled = enabled
        self._gamma = gamma
        self._return = np.zeros(lanes)
        self._moments = RunningMoments(())

    def __call__(
        self, reward: FloatArray, ended: BoolArray, lane: IntArray, begins: BoolArray = NO_LANE
    ) -> Tensor:
        """Adds [T, L] rewards of the lanes numbered `lane` ([L]); returns them scaled.

        Where `begins` (see `Rollout`), the return starts at zero.
        """
        if not self.enabled:
            return torch.from_numpy(reward.copy())
        groups: list[Any] = unique_lane_groups(lane)
        if len(groups) == 1:
            groups = [slice(None)]  # all columns, without a copy
        returns = np.empty(reward.shape)
        for columns in groups:
            lanes, kept = lane[columns], np.where(ended[:, columns], 0.0, self._gamma)
            if begins.size:
                self._return[lanes[begins[columns]]] = 0
            R, r = np.empty(kept.shape), reward[:, columns]
            np.multiply(self._return[lanes], self._gamma, out=R[0])
            R[0] += r[0]
            for R_tm1, share, R_t, r_t in zip(R, kept, R[1:], r[1:], strict=False):
                np.multiply(R_tm1, share, out=R_t)
                np.add(R_t, r_t, out=R_t)
            self._return[lanes] = np.where(ended[-1, columns], 0.0, R[-1])
            returns[:, columns] = R
        self._moments.update(returns.reshape(-1))
        return torch.from_numpy((reward * self.scale).astype(np.float32))

    @property
    def scale(self) -> Float64Array:
        """The factor on rewards, 1 / sqrt(Var[R] + 1e-8)."""
        return np.asarray(1 / np.sqrt(self._moments.variance + 1e-8))

    def state_dict(self) -> dict[str, Any]:
        """State needed to resume."""
        return {"return": self._return.copy(), "moments": self._moments.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        self._return = np.asarray(state["return"]).copy()
        self._moments.load_state_dict(state["moments"])
