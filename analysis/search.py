"""The report of a search for settings: its journal, its figures, its page.

It needs no files of the search's runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.runs import BadInputError
from walle.analysis.writing import cli, page
from walle.analysis.writing.format import counted

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

JOURNAL, RESULTS = "study.journal", "optimization_results.yaml"
EXPERIMENT = "experiment/best.yaml"
FEW = 2  # complete trials, that importances need
TICKS = 5
FEW_STEPS = 8  # a setting with so few values has a tick for each
SHORT = 14  # letters of a tick's label


class StoredSearch(NamedTuple):
    """A search for settings."""

    study: optuna.Study  # Optuna's study
    home: Path  # the directory of its launcher
    settings: dict[str, Any]  # what its launchers recorded, such as `seeds` and `objective`
    trials: list[FrozenTrial]  # all trials, by their numbers
    best: FrozenTrial  # the best complete trial

    def named(self, *states: str) -> list[FrozenTrial]:
        """The trials in these states, such as COMPLETE."""
        return [trial for trial in self.trials if trial.state.name in states]

    @property
    def value_name(self) -> str:
        """What the axis of values shows."""
        seeds, objective = self.settings.get("seeds"), self.settings.get("objective") or "value"
        return f"{objective}, median of {counted(len(seeds), 'seed')}" if seeds else str(objective)


def journal_of(path: Path) -> Path | None:
    """The journal of a search: the file itself, or that of a directory; None without one."""
    if path.is_file():
        return path
    if (path / JOURNAL).is_file():
        return path / JOURNAL
    named = _results(path).get("journal")
    return path / named if isinstance(named, str) and (path / named).is_file() else None


def _results(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        results = yaml.safe_load((path / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return results if isinstance(results, dict) else {}


def load_search(path: Path) -> StoredSearch:
    """Loads the search of a directory, or of a journal.

    Raises BadInputError if Optuna is missing, the journal is damaged, or no trial is complete.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        text = "a search's report needs Optuna: pip install 'walle[optuna]'"
        raise BadInputError(text) from error
    journal = journal_of(path)
    if journal is None:
        raise BadInputError(f"{path} holds no {JOURNAL}: give the directory of a search")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = JournalStorage(JournalFileBackend(str(journal)))
        names = optuna.get_all_study_names(storage)
        name = _results(path).get("study") or (names[0] if len(names) == 1 else None)
        study = optuna.load_study(study_name=str(name), storage=storage) if name else None
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{journal} is no journal of Optuna, or damaged ({error})") from error
    if study is None:
        held = f"several studies ({', '.join(names)})" if names else "no study"
        text = "name the directory of a search, which names its own"
        raise BadInputError(f"{journal} holds {held}: {text}")
    trials = study.get_trials(deepcopy=False)
    if not any(trial.state.name == "COMPLETE" for trial in trials):
        raise BadInputError(f"{journal}: none of {counted(len(trials), 'trial')} is complete yet")
    home, settings = path if path.is_dir() else path.parent, study.user_attrs.get("search", {})
    return StoredSearch(study, home, dict(settings), trials, study.best_trial)


def account(search: StoredSearch) -> list[str]:
    """Sentences about the trials: how many ended how, and the best one."""
    words = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
    words["WAITING"] = "waiting"
    counts = {word: len(search.named(state)) for state, word in words.items()}
    ended = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    best = ", ".join(f"{key}={_shown(value)}" for key, value in search.best.params.items())
    texts = [
        f"{counted(len(search.trials), 'trial')}: {ended}.",
        f"Best: trial {search.best.number} with {search.best.value:.6g}: {best}.",
    ]
    if search.settings.get("seeds"):
        seeds = ", ".join(map(str, search.settings["seeds"]))
        texts.append(
            f"A trial's value is the median over the seeds {seeds}. The best of many trials is "
            "flattered by chance: compare it with the defaults on other seeds."
        )
    return texts


def trial_table(search: StoredSearch) -> pd.DataFrame:
    """A row for each trial."""
    rows = [
        {
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "value": _value(trial) if trial.state.name == "COMPLETE" else math.nan,
            **{key: _shown(value) for key, value in trial.params.items()},
            "evaluations": len(trial.intermediate_values),
            "jobs": " ".join(trial.user_attrs.get("jobs", [])),
            "error": trial.user_attrs.get("error", ""),
        }
        for trial in search.trials
    ]
    return pd.DataFrame(rows)


def best_settings(search: StoredSearch) -> tuple[str, list[str]]:
    """The best settings as YAML, and sentences about how to use them."""
    file = search.home / EXPERIMENT
    if file.is_file():
        use = f"python -m walle.run --config-dir {search.home} +experiment=best"
        text = f"{file} holds these settings. Use them with `{use}`, or copy the file to "
        return file.read_text(encoding="utf-8"), [f"{text}conf/experiment/ beside you."]
    lines = [f"{key}: {_shown(value)}\n" for key, value in search.best.params.items()]
    return "".join(lines), ["The directory of a launcher has them as an experiment."]


def _value(trial: FrozenTrial) -> float:
    return math.nan if trial.value is None else float(trial.value)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_page(path: Path, args: argparse.Namespace) -> Path:
    """Writes the page about a search, prints its account, and returns the path of the page."""
    search = load_search(path)
    keys = " and ".join(f"{k}={space}" for k, space in search.settings.get("space", {}).items())
    settings, use = best_settings(search)
    written: set[str] = set()
    parts = [
        page.paragraph(args.question or f"Which settings are best among {keys}?"),
        page.section("Trials", page.sentences(account(search))),
        page.section("Best settings", page.verbatim(settings) + page.sentences(use)),
        page.figure("History", partial(history, search), written),
        page.figure("Importances", partial(importances, search), written),
        page.figure("Settings and values", partial(parallel_coordinates, search), written),
        page.section("Every trial", page.table(trial_table(search))),
    ]
    file: Path = args.output or search.home / "report.html"
    cli.write_text(file, page.document(args.title or search.home.resolve().name, parts))
    print(*account(search), *use, f"report: {file}", sep="\n")
    return file


def history(search: StoredSearch) -> cli.Study:
    """Every trial's value, and the best so far."""
    complete, pruned = search.named("COMPLETE"), search.named("PRUNED")
    numbers, values = [trial.number for trial in complete], [_value(trial) for trial in complete]
    better = np.maximum if search.study.direction.name == "MAXIMIZE" else np.minimum
    so_far = better.accumulate(values).tolist()
    figure, (axes,) = style.panels(1, page=True, height=2.8)
    axes.plot(numbers, values, "o", color=style.look(0).color, label="complete")
    axes.step(numbers, so_far, where="post", color=style.look(2).color, label="best so far")
    last = {t.number: t.intermediate_values for t in pruned if t.intermediate_values}
    if last:
        label, ends = "pruned (last evaluation)", [x[max(x)] for x in last.values()]
        axes.plot(list(last), ends, "x", color=style.PAPER_GREY, label=label)
    for i, trial in enumerate(search.named("FAIL")):
        label = "failed" if not i else "_"
        axes.axvline(trial.number, color=style.look(3).color, linestyle=":", label=label)
    axes.set(xlabel="trial", ylabel=search.value_name)
    axes.locator_params(axis="x", integer=True)
    style.legend(figure)
    table = pd.DataFrame({"trial": numbers, "value": values, "best so far": so_far})
    first = numbers[so_far.index(so_far[-1])]
    texts = [f"The best value was found in trial {first} of {len(search.trials)}."]
    if pruned:
        mean = sum(len(trial.intermediate_values) for trial in pruned) / len(pruned)
        number = counted(len(pruned), "trial")
        texts.append(f"{number} pruned, after {mean:.1f} evaluations on average.")
    return cli.Study(figure, table, texts)


def importances(search: StoredSearch) -> cli.Study:
    """How much of the differences between good trials each setting explains."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    complete = search.named("COMPLETE")
    if len(complete) < FEW or len({trial.value for trial in complete}) < FEW:
        raise BadInputError("importances need two complete trials with different values")
    shares = get_param_importances(search.study, evaluator=PedAnovaImportanceEvaluator())
    figure, (axes,) = style.panels(1, page=True, height=0.7 + 0.3 * len(shares))
    names = list(shares)[::-1]
    bars = axes.barh(names, [shares[name] for name in names], color=style.look(0).color)
    axes.bar_label(bars, [f"{shares[name]:.0%}" for name in names], padding=3)
    axes.set(xlabel="importance (sums to 1)")
    axes.margins(x=0.1)
    table = pd.DataFrame({"setting": list(shares), "importance": list(shares.values())})
    texts = [
        f"PED-ANOVA (Watanabe et al. 2023) of {counted(len(complete), 'complete trial')}: how much "
        "the settings of the better trials differ from those of all. Pruned trials do not count."
    ]
    if len(complete) < 20:
        texts.append("With so few trials these numbers can be chance.")
    return cli.Study(figure, table, texts)


def parallel_coordinates(search: StoredSearch) -> cli.Study:
    """Every trial as a line through its settings, coloured by its value."""
    import matplotlib as mpl
    from optuna.distributions import FloatDistribution

    minimize, name = search.study.direction.name == "MINIMIZE", search.value_name
    complete = sorted(search.named("COMPLETE"), key=_value, reverse=minimize)  # the worst first
    lines = [{**trial.params, name: _value(trial)} for trial in complete]
    values = [line[name] for line in lines]
    spaces: dict[str, Any] = {}
    for trial in search.trials:
        spaces = {**trial.distributions, **spaces}
    scales = {key: _scale(spaces[key]) for key in search.best.params}
    scales[name] = _scale(FloatDistribution(min(values), max(values)))
    figure, (axes,) = style.panels(1, page=True, height=3.2)

    def draw(line: Mapping[str, Any], **look: Any) -> None:  # a pruned one may end before the last
        known = [(x, scales[key][0](line[key])) for x, key in enumerate(scales) if key in line]
        axes.plot(*zip(*known, strict=True), **look)

    for trial in search.named("PRUNED"):
        draw(trial.params, color="#c8c8c8", linewidth=0.7, linestyle="--", zorder=1)
    colors = mpl.colormaps["viridis"](np.linspace(0, 0.92, len(lines)))  # above it is too bright
    for line, color in zip(lines[:-1], colors, strict=False):
        draw(line, color=color, zorder=2)
    draw(lines[-1], color="#D55E00", linewidth=2.6, zorder=3)
    box = {"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.5}
    small: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "bbox": box}
    for x, (_, ticks) in enumerate(scales.values()):
        axes.axvline(x, color="black", linewidth=0.8, zorder=4)
        for height, label in ticks.items():
            axes.annotate(label[:SHORT], (x, height), (4, 0), va="center", zorder=5, **small)
    axes.set(xlim=(-0.1, len(scales) - 0.55), ylim=(-0.03, 1.03), yticks=[])
    slanted: dict[str, Any] = {"rotation": 20, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(range(len(scales)), list(scales), **slanted)  # so that neighbours do not touch
    axes.spines["left"].set_color("none")
    axes.tick_params(length=0)
    text = "Each line is a complete trial, from the worst (dark) to the best (bright)."
    grey = " Grey lines are pruned trials." if search.named("PRUNED") else ""
    texts = [f"{text}{grey} The best trial is drawn thick."]
    return cli.Study(figure, pd.DataFrame(lines[::-1]), texts)


def _scale(space: Any) -> tuple[Callable[[Any], float], dict[float, str]]:
    """The height of a value on the axis of a setting, from 0 to 1, and the ticks by their heights.

    Categories stand side by side; numbers are linear or logarithmic.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator

    if hasattr(space, "choices"):
        names = list(map(str, space.choices))
        heights = dict(zip(names, np.linspace(0, 1, len(names)).tolist(), strict=True))
        return lambda value: heights[str(value)], {h: name for name, h in heights.items()}
    low, high = space.low, space.high if space.high > space.low else space.low + 1.0
    turn: Callable[[float], float] = math.log10 if space.log else float

    def height(value: Any) -> float:
        return (turn(float(value)) - turn(low)) / (turn(high) - turn(low))

    locator = LogLocator(numticks=TICKS) if space.log else MaxNLocator(TICKS)
    ticks: Any = locator.tick_values(low, high)
    if space.step and round((high - low) / space.step) < FEW_STEPS:
        ticks = np.arange(low, high + space.step / 2, space.step)
    inside = [float(tick) for tick in ticks if low <= tick <= high]
    inside = inside if len(inside) > 1 else [low, high]
    return height, {height(tick): f"{tick:,.4g}" for tick in inside}
