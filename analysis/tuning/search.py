"""A search for settings, loaded from its journal, with its table and its sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from walle.analysis.loading.directories import BadInputError, counted

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

JOURNAL, RESULTS = "study.journal", "optimization_results.yaml"
EXPERIMENT = "experiment/best.yaml"


class Search(NamedTuple):
    """A search for settings.

    Attributes:
        study: Optuna's study.
        home: the directory of its launcher.
        asked: what its launchers recorded: `seeds`, `objective`, `space` and others.
        trials: all trials, by their numbers.
        best: the best complete trial.
    """

    study: optuna.Study
    home: Path
    asked: dict[str, Any]
    trials: list[FrozenTrial]
    best: FrozenTrial

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


def load(path: Path) -> Search:
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
        name = _results(path).get("study") or _only(optuna.get_all_study_names(storage), journal)
        study = optuna.load_study(study_name=str(name), storage=storage)
    except (ValueError, KeyError, TypeError) as error:
        raise BadInputError(f"{journal} is no journal of Optuna, or damaged ({error})") from error
    trials = study.get_trials(deepcopy=False)
    if not any(each.state.name == "COMPLETE" for each in trials):
        raise BadInputError(f"{journal}: none of {counted(len(trials), 'trial')} is complete yet")
    asked = dict(study.user_attrs.get("search", {}))
    home = path if path.is_dir() else path.parent
    return Search(study, home, asked, trials, study.best_trial)


def _only(names: Sequence[str], journal: Path) -> str:
    if len(names) != 1:
        held = f"several studies ({', '.join(names)})" if names else "no study"
        raise BadInputError(
            f"{journal} holds {held}: give the directory of a search, which names its own"
        )
    return names[0]


def account(search: Search) -> list[str]:
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


def table(search: Search) -> pd.DataFrame:
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


def best_settings(search: Search) -> tuple[str, list[str]]:
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
