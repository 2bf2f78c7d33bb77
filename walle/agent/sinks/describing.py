"""What TensorBoard and W&B show of a run: its name, tags, settings, sections and summary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from walle.agent.csv_file import Row
from walle.system.identity import flatten
from walle.system.run_files import read_status

_NOT_OF_THE_EXPERIMENT = ("name", "resume", "logger")  # where a run reports, not what it does
# They follow from batch_size, lag and total_steps.
_FOLLOWING = ("sampler.lanes", "sampler.slots", "schedule_steps")


class Description(NamedTuple):
    """A run as a sink shows it among other runs."""

    name: str  # the settings that distinguish the run, such as `sampler.n=4 seed=1`
    tags: tuple[str, ...]  # the algorithm and the environment
    sweep: str | None  # name of the sweep's directory; None for a single run
    settings: dict[str, Any]  # the configuration without what follows from other settings, nested


def describe(directory: Path, config: Mapping[str, Any]) -> Description:
    """Describes the run in `directory`, from its files and its configuration.

    In a sweep the launcher has written into status.json by which settings the job differs from the
    others. Any other run is named after what was typed.
    """
    path = directory / "run.json"
    text = path.read_text(encoding="utf-8") if path.exists() else '{"overrides": []}'
    typed = [str(word) for word in json.loads(text)["overrides"]]
    status = read_status(directory)
    plain = f"{config['algo']['name']} {config['env']['name']}"
    name = status.get("label") or " ".join(filter(_of_the_experiment, typed)) or plain
    tags = (str(config["algo"]["name"]), str(config["env"]["name"]))
    return Description(name, tags, status.get("sweep"), settings(config, typed))


def settings(config: Mapping[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    """The nested settings, without those that follow from others and that nobody typed."""
    keys = {override.lstrip("+").partition("=")[0] for override in typed}
    left_out = {*_NOT_OF_THE_EXPERIMENT, *_FOLLOWING} - keys.intersection(_FOLLOWING)

    def kept(node: Mapping[str, Any], prefix: str) -> dict[str, Any]:
        return {
            key: kept(value, f"{prefix}{key}.") if isinstance(value, Mapping) else value
            for key, value in node.items()
            if prefix + key not in left_out
        }

    return kept(config, "")


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of nested settings under dotted keys; a list or None becomes text."""
    return {
        key: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for key, value in flatten(settings).items()
    }


def section(column: str) -> str:
    """The section of a column of iterations.csv: `time`, `return`, `lag`, else `loss`."""
    if column.endswith(("_s", "_share")) or column == "iteration":
        return "time"
    if column.startswith(("return_", "length_")) or column == "episodes":
        return "return"
    if column.startswith(("lag_", "dropped_")) or column == "policy_version":
        return "lag"
    return "loss"


def by_section(row: Row) -> dict[str, float | int]:
    """The numbers of a row of iterations.csv, such as `time/collect_s`, without the env_steps."""
    return {f"{section(name)}/{name}": value for name, value in _numbers(row).items()}


def of_evaluation(row: Row) -> dict[str, float | int]:
    """The numbers of a row of eval.csv, such as `eval/return_mean`, without the env_steps."""
    return {f"eval/{name}": value for name, value in _numbers(row).items()}


def _numbers(row: Row) -> dict[str, float | int]:
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    numbers.pop("env_steps", None)  # the axis of all others
    return numbers


class Speed:
    """Mean times of a run, for its summary; an iteration that compiled does not count."""

    def __init__(self) -> None:
        self._iterations = 0
        self._sums = dict.fromkeys(("iteration_s", "collect_s", "learn_s", "env_steps"), 0.0)

    def add(self, row: Row) -> None:
        """Adds a row of iterations.csv."""
        numbers = {name: float(row[name] or 0) for name in ("iteration_s", "collect_s", "learn_s")}
        if row["compile_s"]:
            return
        numbers["env_steps"] = float(row["env_steps_per_s"] or 0) * numbers["iteration_s"]
        self._iterations += 1
        self._sums = {name: self._sums[name] + value for name, value in numbers.items()}

    def means(self) -> dict[str, float]:
        """Seconds of an iteration and its parts, shares, steps a second; empty without a row."""
        if not self._iterations or not self._sums["iteration_s"]:
            return {}
        total_s = self._sums["iteration_s"]
        names = ("iteration_s", "collect_s", "learn_s")
        return {
            **{name: self._sums[name] / self._iterations for name in names},
            "collect_share": self._sums["collect_s"] / total_s,
            "learn_share": self._sums["learn_s"] / total_s,
            "env_steps_per_s": self._sums["env_steps"] / total_s,
        }


def summary(row: Row, speed: Speed) -> dict[str, float | int]:
    """The last numbers of a run, such as `summary/eval_mean` and `summary/collect_share`."""
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return {f"summary/{name}": value for name, value in (numbers | speed.means()).items()}


def _of_the_experiment(override: str) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    return key.partition(".")[0] not in ("hydra", *_NOT_OF_THE_EXPERIMENT) and "hydra/" not in key
