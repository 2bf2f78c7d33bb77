"""Settings of single choices of a group: `ppo.clip=0.1` in a sweep over `algo=ppo,a2c`.

Such an override becomes `algo.clip=0.1` in the jobs with algo=ppo, and is dropped from all others.
Records, hashes and figures therefore hold only the settings that a job has in the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hydra.types import HydraContext
from omegaconf import DictConfig

from walle.errors import nearest
from walle.launcher.composing import PlanError, requested_overrides

_OVERRIDE = re.compile(r"(\+{0,2})([\w-]+)\.([^=]+)=(.*)", re.DOTALL)


class ChoiceSettings:
    """The overrides of single choices of a group in one sweep."""

    def __init__(self, context: HydraContext, master: DictConfig, group: str | None) -> None:
        """Finds the choices of the group, such as "algo"; none without a group.

        A choice with the name of a key of the sweep's config has no settings of its own.
        """
        self._context, self._master, self._group = context, master, group
        self._choices: set[str] = set()
        self._requested: set[str] = set()  # the words in the values of the group
        if group is not None:
            requested = requested_overrides(context, master)
            texts = [str(override.input_line) for override in requested]
            added = {text.partition(".")[0].lstrip("+") for text in texts if text.startswith("+")}
            options = context.config_loader.get_group_options(group)
            self._choices = set(options) - ({str(key) for key in master} - added)
            of_group = (override for override in requested if override.key_or_group == group)
            values = (str(override.input_line).partition("=")[2] for override in of_group)
            self._requested = {word for text in values for word in re.findall(r"[\w-]+", text)}

    def resolved(self, overrides: Sequence[str]) -> list[str]:
        """The overrides of a job with those of its own choice in their final form.

        Raises:
            PlanError: the job's choice has no such setting.
        """
        matches = {text: match for text in overrides if (match := self._match(text))}
        plain = [text for text in overrides if text not in matches]
        if not matches:
            return plain
        config = self._context.config_loader.load_sweep_config(self._master, plain)
        choice = self._choice(config)
        for signs, name, setting, value in (match.groups() for match in matches.values()):
            if name == choice:
                added = "+" if signs == "+" else ""
                key = self._key(config, name, setting, f"{added}{name}.{setting}={value}")
                plain = [text for text in plain if text.lstrip("+").partition("=")[0] != key]
                plain.append(f"{added}{key}={value}")
        return plain

    def refuse_absent(self, jobs: Sequence[Sequence[str]], configs: Sequence[DictConfig]) -> None:
        """Checks that every override of a single choice concerns some job of the sweep.

        Raises:
            PlanError: no job has the choice.
        """
        present = {choice for config in configs if (choice := self._choice(config))}
        for text in dict.fromkeys(text for job in jobs for text in job):
            match = self._match(text)
            # An adaptive sweeper may choose later what the command line asks for.
            if match is not None and match[2] not in present | self._requested:
                shown = text.removeprefix("++")
                raise PlanError(
                    f"{shown}: no job of this sweep has {self._group}={match[2]}; the sweep has "
                    f"{self._group}={','.join(sorted(present))}: add {match[2]} or drop {shown}"
                )

    def _choice(self, config: DictConfig) -> str | None:
        choices = config.hydra.runtime.choices
        return None if self._group is None else str(choices.get(self._group))

    def _match(self, override: str) -> re.Match[str] | None:
        """Signs, choice, key and value of an override of a single choice; None for any other."""
        match = _OVERRIDE.fullmatch(override)
        return match if match is not None and match[2] in self._choices else None

    def _key(self, config: DictConfig, choice: str, setting: str, shown: str) -> str:
        """The key of the config that an override sets: one of the group's, or of the top level."""
        first = setting.partition(".")[0]
        node = config[str(self._group)]
        if shown.startswith("+") or first in node.keys():  # noqa: SIM118 - `in` skips empty keys
            return f"{self._group}.{setting}"
        if first in config and first != "hydra":
            return setting
        near = nearest(f"{choice}.{setting}", {f"{choice}.{key}" for key in node})
        raise PlanError(f"{shown}: {choice} has no setting {setting}; {near}")
