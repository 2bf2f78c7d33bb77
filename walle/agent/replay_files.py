"""The replay buffer on disk: rows are appended, so that no checkpoint writes the buffer again."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from walle.errors import ConfigError
from walle.learning.replay import Replay

_ROWS_A_FILE = 65_536


class ReplayFiles:
    """Files of rows, each named after the number of its first row; rows count from the run's start.

    Files are removed once all their rows are older than both kept checkpoints need.
    """

    def __init__(self, directory: Path) -> None:
        """Creates `directory` with the first rows."""
        self._directory = directory
        self._written = 0
        self._oldest = 0
        self._needed = 0

    def append(self, replay: Replay) -> None:
        """Writes the rows that came since the last call."""
        for each in (self._directory.parent, self._directory):  # not the run's, were it deleted
            each.mkdir(exist_ok=True)
        self._oldest = replay.inserted - len(replay)
        self._written = max(self._written, self._oldest)
        while self._written < replay.inserted:
            begin = self._written // _ROWS_A_FILE * _ROWS_A_FILE
            end = min(begin + _ROWS_A_FILE, replay.inserted)
            rows = replay.rows(self._written, end).numpy()
            with self._path(begin).open("r+b" if self._path(begin).exists() else "wb") as file:
                file.seek((self._written - begin) * rows.shape[1] * rows.itemsize)
                file.write(rows.tobytes())
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            self._written = end

    def forget(self) -> None:
        """Removes what neither the checkpoint written since `append` nor the one before needs."""
        self._forget_before(self._needed)
        self._needed = self._oldest

    def load(self, replay: Replay, inserted: int, size: int) -> None:
        """Fills `replay` with the last `size` of the first `inserted` rows.

        Raises:
            ConfigError: rows are missing.
        """
        begin = max(inserted - size, inserted - replay.capacity)
        first = begin // _ROWS_A_FILE * _ROWS_A_FILE
        parts = [self._rows(place, replay) for place in range(first, inserted, _ROWS_A_FILE)]
        nothing = np.empty((0, replay.width), replay.dtype)
        rows = np.concatenate([nothing, *parts])[begin - first :][: inserted - begin]
        if len(rows) < inserted - begin:
            raise ConfigError(
                f"{self._directory} lacks rows of the replay buffer: the checkpoint needs rows "
                f"{begin} to {inserted - 1}"
            )
        replay.restore(torch.from_numpy(rows), inserted)
        self._written, self._oldest, self._needed = inserted, begin, begin

    def _rows(self, begin: int, replay: Replay) -> np.ndarray:
        path = self._path(begin)
        data = path.read_bytes() if path.exists() else b""
        size = replay.width * np.dtype(replay.dtype).itemsize
        whole = data[: len(data) // size * size]
        return np.frombuffer(whole, replay.dtype).reshape(-1, replay.width)

    def _forget_before(self, row: int) -> None:
        for path in self._directory.glob("*.rows"):
            if int(path.stem) + _ROWS_A_FILE <= row:
                path.unlink()

    def _path(self, begin: int) -> Path:
        return self._directory / f"{begin:012}.rows"
