"""Settings of single choices of a group: `ppo.clip=0.1` in a sweep over `algo=ppo,a2c`.

Such an override becomes `algo.clip=0.1` in the jobs with algo=ppo, and is dropped from all others.
So records, hashes and figures hold nothing but the settings that a job has in the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from hydra.types import HydraContext
from omegaconf import DictConfig

from walle.errors import nearest
from walle.launcher.overrides.swept import asked_overrides

_OVERRIDE = re.compile(r"(\+{0,2})([\w-]+)\.([^=]+)=(.*)", re.DOTALL)


class OwnSettingError(ValueError):
    """A setting of a single choice that no job can have."""


class Own(NamedTuple):
    """An override of a single choice.

    Attributes:
        choice: the choice of the group, such as "ppo".
        key: the dotted key within the choice, such as "clip".
        value: the value as it was typed.
        added: whether the key is new, with a plus before it.
    """

    choice: str
    key: str
    value: str
    added: bool

    def __str__(self) -> str:
        """The override as it was typed on the command line: `[+]choice.key=value`."""
        return f"{'+' if self.added else ''}{self.choice}.{self.key}={self.value}"


class OwnSettings:
    """The overrides of single choices of a group in one sweep."""

    def __init__(self, context: HydraContext, master: DictConfig, group: str | None) -> None:
        """Finds the choices.

        Args:
            context: holds Hydra's loader.
            master: the sweep's config; a choice with the name of one of its keys has no settings
                of its own.
            group: the group, such as "algo"; None where no group's choices have such settings.
        """
        self._context, self._master, self._group = context, master, group
        self._choices: set[str] = set()
        if group is not None:
            asked = [str(one.input_line) for one in asked_overrides(context, master)]
            added = {one.partition(".")[0].lstrip("+") for one in asked if one.startswith("+")}
            options = context.config_loader.get_group_options(group)
            self._choices = set(options) - ({str(key) for key in master} - added)

    def resolved(self, overrides: Sequence[str]) -> list[str]:
        """The overrides of a job with those of its own choice in their final form.

        Raises:
            OwnSettingError: the job's choice has no such setting.
        """
        found = [self._own(one) for one in overrides]
        plain = [one for one, own in zip(overrides, found, strict=True) if own is None]
        if len(plain) == len(overrides):
            return plain
        config = self._context.config_loader.load_sweep_config(self._master, plain)
        choice = self.choice(config)
        for own in found:
            if own is not None and own.choice == choice:
                key = self._key(own, config)
                plain = [one for one in plain if one.lstrip("+").partition("=")[0] != key]
                plain.append(f"{'+' if own.added else ''}{key}={own.value}")
        return plain

    def choice(self, config: DictConfig) -> str | None:
        """The choice of the group in a job's config."""
        if self._group is None:
            return None
        return str(config.hydra.runtime.choices.get(self._group))

    def refuse_absent(self, jobs: Sequence[Sequence[str]], configs: Sequence[DictConfig]) -> None:
        """Checks that every override of a single choice concerns some job of the sweep.

        Args:
            jobs: the overrides of each job, as the sweeper gave them.
            configs: of the jobs.

        Raises:
            OwnSettingError: no job has the choice.
        """
        owns = {str(own): own for job in jobs for one in job if (own := self._own(one))}
        present = {choice for config in configs if (choice := self.choice(config))}
        for own in owns.values():
            if own.choice not in present | self._asked():
                raise OwnSettingError(
                    f"{own}: no job of this sweep has {self._group}={own.choice}; the sweep has "
                    f"{self._group}={','.join(sorted(present))}: add {own.choice} or drop {own}"
                )

    def _asked(self) -> set[str]:
        """The words in the values of the group: an adaptive sweeper may choose them later."""
        texts = [
            str(one.input_line).partition("=")[2]
            for one in asked_overrides(self._context, self._master)
            if one.key_or_group == self._group
        ]
        return {word for text in texts for word in re.findall(r"[\w-]+", text)}

    def _own(self, override: str) -> Own | None:
        """The parts of an override of a single choice; None for any other override."""
        parts = _OVERRIDE.fullmatch(override)
        if parts is None or parts[2] not in self._choices:
            return None
        return Own(parts[2], parts[3], parts[4], added=parts[1] == "+")

    def _key(self, own: Own, config: DictConfig) -> str:
        """The key of the config that `own` sets: one of the group's, or of the top level."""
        first = own.key.partition(".")[0]
        node = config[str(self._group)]
        if own.added or first in node.keys():  # noqa: SIM118 - `in` skips keys without a value
            return f"{self._group}.{own.key}"
        if first in config and first != "hydra":
            return own.key
        near = nearest(f"{own.choice}.{own.key}", {f"{own.choice}.{key}" for key in node})
        raise OwnSettingError(f"{own}: {own.choice} has no setting {own.key}; {near}")
