"""Evaluates trained policies: of a run, of a checkpoint file, of all runs of a sweep.

    walle eval outputs/hopper episodes=200
    walle eval multirun/seeds csv=evaluations.csv
    walle eval outputs/hopper deterministic=false which=last
    walle eval outputs/hopper episodes=1 video=hopper.mp4

All policies face the same episodes, which no run used for training or for its evaluations.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from walle.errors import ConfigError, WalleError, what_went_wrong
from walle.policy.arguments import Setting, parse

if TYPE_CHECKING:
    from walle.policy.evaluating import Result

PRINT_EVERY_S = 5.0  # while a video is drawn
SETTINGS = {
    "episodes": Setting(int, 100, "episodes of each policy"),
    "seed": Setting(int, 0, "seed of the episodes, which are the same for every policy"),
    "deterministic": Setting(bool, True, "take the likeliest actions, or draw them"),
    "which": Setting(str, None, "best or last checkpoint; by default the best if there is one"),
    "trust": Setting(bool, False, "import what the policy names: its net, a module beside the run"),
    "processes": Setting(int, None, "policies that are evaluated at once; by default all cores"),
    "csv": Setting(str, None, "a file for the table, with a row for each policy"),
    "video": Setting(str, None, "an .mp4 or .gif file for the first episode, policies in a grid"),
    "video_steps": Setting(int, None, "actions in the video at most; none: the whole episode"),
}
SWITCHES = {"--watch": "show the first policy in a window: MuJoCo's viewer, or the task's own"}


def main() -> int:
    """Runs the command; returns 1 if a policy could not be evaluated, 2 for a wrong argument."""
    from walle.system.machine import THREAD_VARIABLES
    from walle.system.signals import standard_output

    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")  # before anything imports a threaded library
    try:
        with standard_output():
            code = _main(sys.argv[1:])
    except (WalleError, OSError) as error:
        print(f"walle eval: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError | OSError) else 1
    except KeyboardInterrupt:
        return 130
    return code


def _main(arguments: Sequence[str]) -> int:
    from walle.policy.acting import check_which

    paths, values, switches = parse(arguments, __doc__ or "", SETTINGS, SWITCHES)
    table, video, steps = (values.pop(name) for name in ("csv", "video", "video_steps"))
    if steps is not None and (steps < 1 or not video):
        raise ConfigError(f"video_steps={steps} must be 1 at least, beside video=FILE")
    for name, least in (("episodes", 1), ("seed", 0), ("processes", 1)):
        if values[name] is not None and values[name] < least:
            raise ConfigError(f"{name}={values[name]} must be {least} at least")
    processes = values.pop("processes")
    check_which(values["which"])
    files = {name: _file(name, file) for name, file in (("csv", table), ("video", video)) if file}
    targets = [target for path in paths for target in find_targets(path, several=len(paths) > 1)]
    if switches["watch"]:
        from walle.policy.acting import load
        from walle.policy.video import watch

        policy = load(targets[0].path, values["which"], trust=values["trust"])
        watch(policy, seed=values["seed"], deterministic=values["deterministic"])
        return 0
    with chdir("."):  # an environment may change it
        make_video = _film(targets, files["video"], values, steps) if video else None
    results, failed = [], False
    for target, result in evaluate_all(targets, values, processes):
        if isinstance(result, str):
            name = "" if result.startswith(target.name) else f"{target.name}: "
            print(f"walle eval: {name}{result}", file=sys.stderr)
            failed = True
            continue
        results.append((target, result))
        settings = f"{_settings(target.settings)}: " if target.settings else ""
        interrupted = f", {target.state} run" if target.unfinished else ""
        print(f"{target.name}: {settings}{result}{interrupted}", flush=True)
    for line in summary(results):
        print(line)
    if table and results:
        import pandas as pd

        rows = [
            {"run": target.name, **target.settings, "state": target.state, **result.row()}
            for target, result in results
        ]
        pd.DataFrame(rows).to_csv(files["csv"], index=False)
        print(f"numbers: {table}")
    if make_video:
        longest = max((result.lengths[0] for _, result in results), default=0)
        text = f"drawing the video, {min(steps or longest, longest):,} actions: about 0.1 s each in"
        print(f"{text} MuJoCo without a graphics card; video_steps=N draws fewer", flush=True)
        print(f"video: {video}, {make_video():.1f} s", flush=True)
    return int(failed)


def _file(name: str, value: str) -> Path:
    """The absolute path of a file to write, in a directory that is made here."""
    path = Path(value).absolute()
    if path.is_dir():
        raise ConfigError(f"{name}={value} is a directory: name a file in it")
    of_run = [folder / "run.json" for folder in path.parents[:2]] + [path.parent / "manifest.json"]
    if name == "csv" and path.exists() and any(file.exists() for file in of_run):
        with path.open("rb") as file:
            if file.read(4) != b"run,":  # with which the tables of this command begin
                raise ConfigError(f"csv={value} is a file of a run or a sweep: give another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _film(
    targets: Sequence[Target], path: Path, values: Mapping[str, Any], most_steps: int | None
) -> Callable[[], float]:
    """Checks before the evaluation that a video can be made; returns a function that makes it."""
    from walle.policy.acting import load
    from walle.policy.video import film, most_fps, write

    several = len(targets) > 1
    drawing = film(
        [load(target.path, values["which"], trust=values["trust"]) for target in targets],
        [_settings(target.settings) or target.name for target in targets] if several else [],
        seed=values["seed"],
        deterministic=values["deterministic"],
        most_fps=most_fps(path),
        most_steps=most_steps,
    )
    first = next(drawing.pictures)  # refuses what cannot be drawn

    def pictures() -> Iterator[Any]:
        printed_at = time.monotonic()
        for count, picture in enumerate(chain([first], drawing.pictures), 1):
            yield picture
            if time.monotonic() - printed_at > PRINT_EVERY_S:
                printed_at = time.monotonic()
                print(f"  {count:,} pictures", flush=True)

    return lambda: write(drawing._replace(pictures=pictures()), path)


class Target(NamedTuple):
    """A policy to evaluate."""

    name: str  # how the table names it
    path: Path  # a run's directory or a checkpoint file
    # the settings from its run's command line that differ between the runs of the sweep
    settings: Mapping[str, str]
    state: str = ""  # how its run ended; empty for a policy named on its own
    # the directory whose runs are all evaluated; None for a policy named on its own
    sweep: Path | None = None
    # the least and the greatest return of an episode, if they are known
    possible: tuple[float, float] = (-math.inf, math.inf)

    @property
    def unfinished(self) -> bool:
        """Whether its run was interrupted or is still running."""
        return self.state not in ("", "completed")


def find_targets(path: Path, *, several: bool) -> list[Target]:
    """The policies of a checkpoint file, of a run's directory, or of all runs below a path."""
    from walle.analysis.measuring.scores import possible_returns  # imports pandas
    from walle.analysis.runs import BadInputError, load

    if path.is_file() or (path / "checkpoints").is_dir():
        return [Target(str(path), path, {})]
    try:
        sweep = load(path)
    except BadInputError as error:
        raise ConfigError(str(error)) from None
    for run, reason in sweep.left_out:
        print(f"walle eval: {run} is left out: {reason}", file=sys.stderr)
    prefix = f"{path}/" if several else ""
    typed = varying([run.provenance.get("overrides") or [] for run in sweep.runs])
    return [
        Target(f"{prefix}{run.name}", run.path, settings, run.state, path, possible_returns([run]))
        for run, settings in zip(sweep.runs, typed, strict=True)
    ]


def varying(overrides: Sequence[Sequence[str]]) -> list[dict[str, str]]:
    """Each run's settings from its command line, except those that all runs share."""
    typed = [dict(word.lstrip("+~").partition("=")[::2] for word in run) for run in overrides]
    keys = dict.fromkeys(key for run in typed for key in run)
    differ = [key for key in keys if len({run.get(key, "default") for run in typed}) > 1]
    return [{key: run.get(key, "default") for key in differ} for run in typed]


def evaluate_all(
    targets: Sequence[Target], values: Mapping[str, Any], processes: int | None
) -> Iterator[tuple[Target, Result | str]]:
    """Yields each target's result, or one line with the reason why there is none, in order.

    `values` are arguments of `walle.evaluate`; `processes` of None means one on each usable core.
    """
    from walle.system.machine import usable_cores

    count = min(processes or len(usable_cores()), len(targets))
    if len(targets) == 1:
        yield targets[0], attempt(targets[0].path, values, alone=True)
        return
    from walle.system.forkserver import end_all_processes, keep_processes, start_fork_server
    from walle.system.workers import become_worker

    keep_processes()
    process = partial(ProcessPoolExecutor, 1, start_fork_server(), become_worker, (1,))
    pool = ThreadPoolExecutor(count)
    try:
        tasks = [pool.submit(_in_process, process, target.path, values) for target in targets]
        for target, task in zip(targets, tasks, strict=True):
            yield target, task.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        end_all_processes()
        raise
    pool.shutdown()


def _in_process(
    process: Callable[[], ProcessPoolExecutor], path: Path, values: Mapping[str, Any]
) -> Result | str:
    """Makes an `attempt` in a new process, which an environment may end: others have their own."""
    with process() as pool:
        task = pool.submit(attempt, path, values)
        error = task.exception()
    if isinstance(error, BrokenProcessPool):
        return (
            "the process that evaluated it was killed, or its environment called os._exit; correct "
            f"the environment (`walle eval {path}` repeats this run), or, if memory ran out, use "
            "fewer processes="
        )
    return str(error) if error else task.result()


def attempt(path: Path, values: Mapping[str, Any], *, alone: bool = False) -> Result | str:
    """The result, or a line that says why there is none; if `alone`, lets a ConfigError pass."""
    from walle.policy.evaluating import evaluate

    try:
        with chdir("."):  # an environment may change it
            return evaluate(path, **values)
    except WalleError as error:
        if alone and isinstance(error, ConfigError):
            raise
        return str(error)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - an environment may raise anything
        return what_went_wrong(error)


def summary(results: Sequence[tuple[Target, Result]]) -> Iterator[str]:
    """Yields a line for each group of runs that differ only in their seed: the mean of their means.

    Runs that did not complete are excluded, and listed in a last line.
    """
    from walle.policy.evaluating import MeanReturn

    groups: dict[tuple[Path, str], list[tuple[Target, float]]] = {}
    unfinished = [target for target, _ in results if target.unfinished]
    for target, result in results:
        if target.unfinished or target.sweep is None:
            continue
        rest = {key: value for key, value in target.settings.items() if key != "seed"}
        same = groups.setdefault((target.sweep, _settings(rest)), [])
        same.append((target, result.mean.value))
    several = len({sweep for sweep, _ in groups}) > 1
    for (sweep, settings), runs in groups.items():
        if len(runs) > 1:
            name = " ".join(part for part in (f"{sweep}" if several else "", settings) if part)
            mean = MeanReturn.of([value for _, value in runs], runs[0][0].possible)
            yield f"{name or 'all'}: mean return of {len(runs)} runs {mean}"
    if unfinished:
        named = ", ".join(f"{target.name} ({target.state})" for target in unfinished)
        yield f"in no mean, as they did not complete: {named}"


def _settings(values: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


if __name__ == "__main__":
    sys.exit(main())
