"""Sinks for a run's reports: TensorBoard and W&B, in sections such as time/ and return/."""

from __future__ import annotations

import csv
import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from walle.agent.csv_file import Row
from walle.errors import what_went_wrong
from walle.system.identity import flatten
from walle.system.run_files import read_status, set_aside, update_status

_NOT_OF_THE_EXPERIMENT = ("name", "resume", "logger")  # where a run reports, not what it does
# Settings that are derived from batch_size, lag and total_steps.
_FOLLOWING = ("sampler.lanes", "sampler.slots", "schedule_steps")
# The columns of TensorBoard's table of hyperparameters; it takes the newest value of each.
_METRICS = (
    *("eval/return_mean", "return/return_mean", "summary/env_steps_per_s"),
    *("summary/collect_share", "summary/wall_s"),
)


class Description(NamedTuple):
    """How a sink presents a run among other runs."""

    name: str  # the settings that distinguish the run, such as `sampler.n=4 seed=1`
    tags: tuple[str, ...]  # the algorithm and the environment
    sweep: str | None  # name of the sweep's directory; None for a single run
    settings: dict[str, Any]  # nested, see the function `settings`


def describe(directory: Path, config: Mapping[str, Any]) -> Description:
    """Describes the run in `directory`, from its files and its configuration.

    In a sweep, status.json holds the settings in which the job differs from the others. Any other
    run is named after its command line.
    """
    path = directory / "run.json"
    text = path.read_text(encoding="utf-8") if path.exists() else '{"overrides": []}'
    typed = [str(word) for word in json.loads(text)["overrides"]]
    status = read_status(directory)
    tags = (str(config["algo"]["name"]), str(config["env"]["name"]))
    name = status.get("label") or " ".join(filter(_of_the_experiment, typed)) or " ".join(tags)
    return Description(name, tags, status.get("sweep"), settings(config, typed))


def _of_the_experiment(override: str) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    return key.partition(".")[0] not in ("hydra", *_NOT_OF_THE_EXPERIMENT) and "hydra/" not in key


def settings(config: Mapping[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    """The experiment's settings, nested, without derived settings that `typed` does not set."""
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


def section(column: str, info: Collection[str] = ()) -> str:
    """The section of a column of iterations.csv: `info`, `time`, `return`, `lag`, else `loss`."""
    if column in info:
        return "info"
    if column.endswith(("_s", "_share")) or column == "iteration":
        return "time"
    if column.startswith(("return_", "length_")) or column == "episodes":
        return "return"
    if column.startswith(("lag_", "dropped_")) or column == "policy_version":
        return "lag"
    return "loss"


class Speed:
    """Mean times of a run, for its summary; an iteration that compiled does not count."""

    def __init__(self) -> None:
        self._iterations = 0
        self._sums = dict.fromkeys(("iteration_s", "collect_s", "learn_s", "env_steps"), 0.0)

    def add(self, row: Row) -> None:
        """Adds a row of iterations.csv."""
        if row["compile_s"]:
            return
        numbers = {name: float(row[name] or 0) for name in ("iteration_s", "collect_s", "learn_s")}
        numbers["env_steps"] = float(row["env_steps_per_s"] or 0) * numbers["iteration_s"]
        self._iterations += 1
        self._sums = {name: self._sums[name] + value for name, value in numbers.items()}

    def means(self) -> dict[str, float]:
        """Mean seconds of an iteration and its parts, the parts' shares, steps a second; or {}."""
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


def summary(row: Row) -> dict[str, float | int]:
    """The final numbers of a run, such as `summary/eval_mean` and `summary/collect_share`."""
    return {f"summary/{k}": value for k, value in _numbers(row).items()}


def _numbers(row: Row) -> dict[str, float | int]:
    return {name: value for name, value in row.items() if isinstance(value, int | float)}


class Sink(ABC):
    """Shows the rows of iterations.csv and eval.csv over environment steps."""

    continues: bool  # whether it has the rows of the run before it was resumed

    def iteration(self, row: Row, info: Collection[str] = ()) -> None:
        """Logs the numbers of a row of iterations.csv by section; `info` names the info columns."""
        numbers = _numbers({**row, "env_steps": None})
        self.log({f"{section(k, info)}/{k}": x for k, x in numbers.items()}, row["env_steps"])

    def evaluation(self, row: Row) -> None:
        """Logs the numbers of eval.csv, such as `eval/return_mean`."""
        numbers = {f"eval/{k}": x for k, x in _numbers(row).items() if k != "env_steps"}
        self.log(numbers, row["env_steps"])

    def repeat(self, directory: Path, resumed: Mapping[str, Any]) -> None:
        """Logs the rows and videos up to the checkpoint `resumed` into a new sink."""
        entries: list[tuple[float, Callable[[], None]]] = [
            (int(path.stem), partial(self.video, int(path.stem), path))
            for path in (directory / "videos").glob("*")
            if path.stem.isdecimal() and int(path.stem) <= resumed["env_steps"]
        ]
        info = [f"{name}_mean" for name in read_status(directory).get("info") or ()]
        iteration = partial(self.iteration, info=info)
        for name, log in (("eval", self.evaluation), ("iterations", iteration)):
            if length := resumed["recorder"]["lengths"].get(name):
                text = (directory / f"{name}.csv").read_bytes()[:length].decode()
                for cells in csv.DictReader(text.splitlines()):
                    row = {key: float(cell) for key, cell in cells.items() if cell}
                    entries.append((row["env_steps"], partial(log, row)))
        failures: dict[str, None] = {}
        for _, log_again in sorted(entries, key=lambda entry: entry[0]):
            try:
                log_again()
            except Exception as error:  # noqa: BLE001 - a service that fails ends no run
                failures[what_went_wrong(error)] = None
        for failure in failures:
            print(f"not shown again: {failure}", file=sys.stderr)

    @abstractmethod
    def log(self, numbers: dict[str, float | int], env_steps: Any) -> None:
        """Logs numbers at a number of environment steps."""

    @abstractmethod
    def video(self, env_steps: int, path: Path) -> None:
        """Shows a video under eval/."""

    @abstractmethod
    def close(self, row: Row) -> None:
        """Logs the summary, with the run's final numbers in `row`, and closes the sink."""


class TensorBoardSink(Sink):
    """TensorBoard's scalars over environment steps, and its table of hyperparameters."""

    def __init__(
        self, directory: Path, described: Description, resumed_at: int | None = None
    ) -> None:
        """Writes event files, the settings of the run first, into a directory named after the run.

        TensorBoard drops the data of earlier files after `resumed_at`, the checkpoint's step,
        because the resumed run repeats the later steps.
        """
        from torch.utils import tensorboard
        from torch.utils.tensorboard import summary as summaries

        earlier = [path.parent for path in directory.rglob("events.*")]
        self.continues = bool(earlier)
        name = described.name.replace("/", "_").encode()[:200].decode(errors="ignore")
        directory = earlier[0] if earlier else directory / name  # the run's name in TensorBoard
        purge_step = None if resumed_at is None else resumed_at + 1
        writer: Any = tensorboard.SummaryWriter(str(directory), purge_step=purge_step)
        hparams: Any = summaries.hparams
        self._writer, self._events = writer, writer._get_file_writer()
        # `SummaryWriter.add_hparams` would show the table as a second run, and only at the end.
        experiment, start, self._end = hparams(flat(described.settings), dict.fromkeys(_METRICS, 0))
        for part in (experiment, start):
            self._events.add_summary(part)

    def log(self, numbers: dict[str, float | int], env_steps: Any) -> None:
        """Logs scalars."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, env_steps)

    def video(self, env_steps: int, path: Path) -> None:
        """Shows a GIF under eval/; `add_video` would need another package to make one."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(path) as picture:
            width, height = picture.size
        image = Summary.Image(
            height=height, width=width, colorspace=3, encoded_image_string=path.read_bytes()
        )
        shown = Summary(value=[Summary.Value(tag="eval/video", image=image)])
        self._events.add_summary(shown, env_steps)

    def close(self, row: Row) -> None:
        """Logs the summary, and closes the event file."""
        self.log(summary(row), row["env_steps"])
        self._events.add_summary(self._end)
        self._writer.close()


class WandbSink(Sink):
    """A W&B run, online or offline."""

    def __init__(self, directory: Path, described: Description, options: Mapping[str, Any]) -> None:
        """Starts a W&B run, or continues the run named in a resumed run's status.json.

        `options` are arguments of `wandb.init`; their tags are added to those of the run.
        """
        import wandb

        earlier = (read_status(directory).get("wandb") or {}).get("id")
        arguments = {
            **options,
            "name": (os.environ.get("WANDB_NAME") or described.name)[:128],  # W&B takes no more
            "group": (options["group"] or described.sweep or "")[:128] or None,
            "tags": sorted({*(tag[:64] for tag in described.tags), *options["tags"]}),
            "resume": "allow" if earlier and options["mode"] != "offline" else None,
            "config": described.settings,
        }
        set_aside(directory, ["wandb/offline-run-*"])  # it cannot grow: the new one replaces it
        self._run: Any = wandb.init(dir=str(directory), id=earlier, **arguments)
        self.continues = bool(self._run.resumed)
        url = None if self._run.offline else self._run.url
        about = {"id": self._run.id, "url": url, "group": arguments["group"]}
        update_status(directory, wandb=about)
        self._run.define_metric("env_steps", hidden=True)
        self._run.define_metric("*", step_metric="env_steps")

    def log(self, numbers: dict[str, float | int], env_steps: Any) -> None:
        """Logs a row."""
        self._run.log({**numbers, "env_steps": env_steps})

    def video(self, env_steps: int, path: Path) -> None:
        """Shows an MP4 or a GIF under eval/."""
        import wandb

        video = wandb.Video(str(path), format=path.suffix[1:])
        self._run.log({"eval/video": video, "env_steps": env_steps})

    def close(self, row: Row) -> None:
        """Writes the summary and ends the run."""
        self._run.summary.update(summary(row))
        raised = sys.exc_info()[0]  # W&B would show a run that fails as finished
        self._run.finish(exit_code=int(raised is not None and issubclass(raised, Exception)))


def make_sinks(
    names: Sequence[str],
    directory: Path,
    config: Mapping[str, Any],
    options: Mapping[str, Any],
    resumed: Mapping[str, Any] | None = None,
) -> list[Sink]:
    """The sinks `names`; `options` are arguments of `wandb.init`, `resumed` is a checkpoint."""
    described, sinks = describe(directory, config), list[Sink]()
    if "tensorboard" in names:
        at = resumed["env_steps"] if resumed else None
        sinks.append(TensorBoardSink(directory / "tensorboard", described, at))
    if "wandb" in names:
        sinks.append(WandbSink(directory, described, options))
    for sink in sinks:
        if resumed and not sink.continues:
            sink.repeat(directory, resumed)
    return sinks
