"""The report of a search for settings: its journal, its figures, its page.

It needs no files of the search's runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from walle.analysis.drawing import style
from walle.analysis.loading.directories import BadInputError
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
    asked: dict[str, Any]  # what its launchers recorded: `seeds`, `objective`, `space` and others
    trials: list[FrozenTrial]  # all trials, by their numbers
    best: FrozenTrial  # the best complete trial

    def named(self, *states: str) -> list[FrozenTrial]:
        """The trials in these states, such as COMPLETE."""
        return [each for each in self.trials if each.state.name in states]

    @property
    def value_name(self) -> str:
        """What the axis of values shows."""
        seeds, objective = self.asked.get("seeds"), self.asked.get("objective") or "value"
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
        found = yaml.safe_load((path / RESULTS).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def load_search(path: Path) -> StoredSearch:
    """Loads the search of a directory, or of a journal.

    Raises:
        BadInputError: Optuna is missing, the journal is damaged, or no trial is complete.
    """
    try:
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend
    except ImportError as error:
        raise BadInputError(
            "a search's report needs Optuna: pip install 'walle[optuna]'"
        ) from error
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
        raise BadInputError(
            f"{journal} holds {held}: name the directory of a search, which names its own"
        )
    trials = study.get_trials(deepcopy=False)
    if not any(each.state.name == "COMPLETE" for each in trials):
        raise BadInputError(f"{journal}: none of {counted(len(trials), 'trial')} is complete yet")
    asked = dict(study.user_attrs.get("search", {}))
    home = path if path.is_dir() else path.parent
    return StoredSearch(study, home, asked, trials, study.best_trial)


def account(search: StoredSearch) -> list[str]:
    """Sentences about the trials: how many ended how, and the best one."""
    words = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
    counts = {words.get(s, s.lower()): len(search.named(s)) for s in (*words, "WAITING")}
    said = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    text = [f"{counted(len(search.trials), 'trial')}: {said}."]
    best = ", ".join(f"{key}={_shown(value)}" for key, value in search.best.params.items())
    text.append(f"Best: trial {search.best.number} with {search.best.value:.6g}: {best}.")
    if search.asked.get("seeds"):
        seeds = ", ".join(map(str, search.asked["seeds"]))
        text.append(
            f"A trial's value is the median over the seeds {seeds}. The best of many trials is "
            "flattered by chance: compare it with the defaults on other seeds."
        )
    return text


def trial_table(search: StoredSearch) -> pd.DataFrame:
    """A row for each trial."""
    rows = [
        {
            "trial": each.number,
            "state": each.state.name.lower(),
            "value": value_of(each) if each.state.name == "COMPLETE" else math.nan,
            **{key: _shown(value) for key, value in each.params.items()},
            "evaluations": len(each.intermediate_values),
            "jobs": " ".join(each.user_attrs.get("jobs", [])),
            "error": each.user_attrs.get("error", ""),
        }
        for each in search.trials
    ]
    return pd.DataFrame(rows)


def best_settings(search: StoredSearch) -> tuple[str, list[str]]:
    """The best settings as YAML, and sentences that say how to use them."""
    file = search.home / EXPERIMENT
    if file.is_file():
        use = f"python -m walle.run --config-dir {search.home} +experiment=best"
        said = f"{file} holds these settings. Use them with `{use}`, or copy the file to "
        return file.read_text(encoding="utf-8"), [f"{said}conf/experiment/ beside you."]
    lines = [f"{key}: {_shown(value)}" for key, value in search.best.params.items()]
    return "\n".join(lines) + "\n", ["The directory of a launcher has them as an experiment."]


def value_of(trial: FrozenTrial) -> float:
    """The value of a trial; nan for one that is not complete."""
    return math.nan if trial.value is None else float(trial.value)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def build(
    search: StoredSearch,
    figure: Callable[[str, Callable[[], cli.Study], set[str]], str],
    *,
    title: str,
    question: str | None = None,
) -> str:
    """The page about a search as text."""
    keys = " and ".join(f"{key}={space}" for key, space in search.asked.get("space", {}).items())
    draws = {
        "History": history,
        "Importances": importances,
        "Settings and values": parallel_coordinates,
    }
    settings, use = best_settings(search)
    written: set[str] = set()
    parts = [
        page.paragraph(question or f"Which settings are best among {keys}?"),
        page.section("Trials", page.sentences(account(search))),
        page.section("Best settings", page.verbatim(settings) + page.sentences(use)),
        *(figure(name, partial(draw, search), written) for name, draw in draws.items()),
        page.section("Every trial", page.table(trial_table(search))),
    ]
    return page.document(title, parts)


def history(search: StoredSearch) -> cli.Study:
    """Every trial's value, and the best so far."""
    complete, pruned = search.named("COMPLETE"), search.named("PRUNED")
    better = max if search.study.direction.name == "MAXIMIZE" else min
    figure, (axes,) = style.panels(1, page=True, height=2.8)
    values = [value_of(each) for each in complete]
    so_far = [better(values[: i + 1]) for i in range(len(values))]
    numbers = [each.number for each in complete]
    axes.plot(numbers, values, "o", color=style.look(0).color, label="complete")
    axes.step(numbers, so_far, where="post", color=style.look(2).color, label="best so far")
    cut = [each for each in pruned if each.intermediate_values]
    last = [each.intermediate_values[max(each.intermediate_values)] for each in cut]
    if cut:
        label = "pruned (last evaluation)"
        axes.plot([each.number for each in cut], last, "x", color=style.PAPER_GREY, label=label)
    for i, each in enumerate(search.named("FAIL")):
        label = "failed" if not i else "_"
        axes.axvline(each.number, color=style.look(3).color, linestyle=":", label=label)
    axes.set(xlabel="trial", ylabel=search.value_name)
    axes.locator_params(axis="x", integer=True)  # half a trial is none
    style.legend(figure)
    table = pd.DataFrame({"trial": numbers, "value": values, "best so far": so_far})
    where = next(i for i, value in enumerate(so_far) if value == so_far[-1])
    said = f"The best value was found in trial {numbers[where]} of {len(search.trials)}."
    mean = sum(len(each.intermediate_values) for each in pruned) / max(1, len(pruned))
    kept = f"{counted(len(pruned), 'trial')} pruned, after {mean:.1f} evaluations on average."
    return cli.Study(figure, table, [said, kept] if pruned else [said])


def importances(search: StoredSearch) -> cli.Study:
    """How much of the differences between good trials each setting explains.

    Raises:
        BadInputError: too few trials are complete.
    """
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    complete = search.named("COMPLETE")
    if len(complete) < FEW or len({each.value for each in complete}) < FEW:
        raise BadInputError("importances need two complete trials with different values")
    evaluator = PedAnovaImportanceEvaluator()
    found = get_param_importances(search.study, evaluator=evaluator)
    figure, (axes,) = style.panels(1, page=True, height=0.7 + 0.3 * len(found))
    names = list(found)[::-1]
    axes.barh(names, [found[name] for name in names], color=style.look(0).color)
    for i, name in enumerate(names):
        axes.annotate(
            f"{found[name]:.0%}", (found[name], i), (3, 0), textcoords="offset points", va="center"
        )
    axes.set(xlabel="importance (sums to 1)")
    axes.margins(x=0.1)
    table = pd.DataFrame({"setting": list(found), "importance": list(found.values())})
    said = (
        f"PED-ANOVA (Watanabe et al. 2023) of {counted(len(complete), 'complete trial')}: how much "
        "the settings of the better trials differ from those of all. Pruned trials do not count."
    )
    few = "With so few trials these numbers can be chance." if len(complete) < 20 else ""
    return cli.Study(figure, table, [said, few] if few else [said])


def parallel_coordinates(search: StoredSearch) -> cli.Study:
    """Every trial as a line through its settings, coloured by its value."""
    import matplotlib as mpl

    complete = search.named("COMPLETE")
    scales = [_scale(key, search.trials) for key in search.best.params]
    values = [value_of(each) for each in complete]
    scales.append(_numeric_scale(search.value_name, min(values), max(values)))
    worst_first = sorted(complete, key=value_of, reverse=search.study.direction.name == "MINIMIZE")
    lines = [{**each.params, search.value_name: value_of(each)} for each in worst_first]
    cut = [dict(each.params) for each in search.named("PRUNED")]
    figure, (axes,) = style.panels(1, page=True, height=3.2)
    for line in cut:  # these may end before the last axis
        _line(axes, scales, line, color="#c8c8c8", linewidth=0.7, linestyle="--", zorder=1)
    colors = mpl.colormaps["viridis"]
    for i, line in enumerate(lines):
        best = i == len(lines) - 1
        place = i / max(1, len(lines) - 1) * 0.92  # its end is too bright on white
        look = {"color": "#D55E00", "linewidth": 2.6} if best else {"color": colors(place)}
        _line(axes, scales, line, zorder=3 if best else 2, **look)
    for x, scale in enumerate(scales):
        axes.axvline(x, color="black", linewidth=0.8, zorder=4)
        for height, label in scale.ticks.items():
            axes.annotate(
                label[:SHORT],
                (x, height),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                zorder=5,
                bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.5},
            )
    axes.set(xlim=(-0.1, len(scales) - 0.55), ylim=(-0.03, 1.03), yticks=[])
    names = [scale.name for scale in scales]  # slanted, so that neighbours do not touch
    axes.set_xticks(range(len(scales)), names, rotation=20, ha="right", rotation_mode="anchor")
    axes.spines["left"].set_color("none")
    axes.tick_params(length=0)
    table = pd.DataFrame(lines[::-1])
    said = "Each line is a complete trial, from the worst (dark) to the best (bright)."
    grey = " Grey lines are pruned trials." if cut else ""
    return cli.Study(figure, table, [f"{said}{grey} The best trial is drawn thick."])


class Scale(NamedTuple):
    """One vertical axis."""

    name: str  # what it shows
    place: Callable[[Any], float]  # the height of a value, from 0 to 1
    ticks: dict[float, str]  # the labels, by their heights


def _scale(key: str, trials: Sequence[FrozenTrial]) -> Scale:
    """The axis of a setting: categories side by side, numbers linear or logarithmic."""
    one: Any = next(each.distributions[key] for each in trials if key in each.distributions)
    if hasattr(one, "choices"):
        names = list(map(str, one.choices))
        step = 1 / max(1, len(names) - 1)
        heights = {name: i * step for i, name in enumerate(names)}
        return Scale(key, lambda value: heights[str(value)], {h: n for n, h in heights.items()})
    count = round((one.high - one.low) / one.step) + 1 if one.step else math.inf
    steps = [one.low + i * one.step for i in range(int(count))] if count <= FEW_STEPS else None
    return _numeric_scale(key, one.low, one.high, log=one.log, ticks=steps)


def _numeric_scale(
    name: str, low: float, high: float, *, log: bool = False, ticks: Sequence[float] | None = None
) -> Scale:
    from matplotlib.ticker import LogLocator, MaxNLocator

    high = high if high > low else low + 1.0
    turn: Callable[[float], float] = math.log10 if log else float
    width = turn(high) - turn(low)

    def place(value: Any) -> float:
        return (turn(float(value)) - turn(low)) / width

    locator = LogLocator(numticks=TICKS) if log else MaxNLocator(TICKS)
    inside = ticks or [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
    if len(inside) < 2:
        inside = [low, high]
    return Scale(name, place, {place(tick): f"{tick:,.4g}" for tick in inside})


def _line(axes: style.Axes, scales: Sequence[Scale], line: Mapping[str, Any], **look: Any) -> None:
    points = [(x, one.place(line[one.name])) for x, one in enumerate(scales) if one.name in line]
    axes.plot(*zip(*points, strict=True), **look)
