"""The report of a search for settings: its journal, its figures, its page.

It needs no files of the search's runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from walle.analysis.runs import BadInputError
from walle.analysis.writing import cli, page
from walle.analysis.writing.format import counted

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

JOURNAL, RESULTS = "study.journal", "optimization_results.yaml"
EXPERIMENT = "experiment/best.yaml"


class StoredSearch(NamedTuple):
    """A search for settings."""

    study: optuna.Study  # Optuna's study
    home: Path  # the directory of its launcher
    settings: dict[str, Any]  # what its launchers recorded, such as `seeds` and `objective`
    trials: list[FrozenTrial]  # all trials, by their numbers
    best: FrozenTrial  # the best complete trial

    def named(self, state: str) -> list[FrozenTrial]:
        """The trials in a state, such as COMPLETE."""
        return [trial for trial in self.trials if trial.state.name == state]

    @property
    def value_name(self) -> str:
        """What the axis of values shows."""
        seeds, objective = self.settings.get("seeds"), self.settings.get("objective") or "value"
        return f"{objective}, median of {counted(len(seeds), 'seed')}" if seeds else str(objective)


def journal_of(path: Path) -> Path | None:
    """The journal of a search: the file itself, or that of a directory; None if there is none."""
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
    """Sentences about the trials: how many there are in each state, and the best one."""
    states = ("complete", "pruned", "fail", "running", "waiting")
    counts = {state: len(search.named(state.upper())) for state in states}
    ended = ", ".join(f"{n} {s.replace('fail', 'failed')}" for s, n in counts.items() if n)
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
            "value": trial.value if trial.state.name == "COMPLETE" else math.nan,
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
        return file.read_text(encoding="utf-8"), [f"{text}conf/experiment/ in your directory."]
    lines = [f"{key}: {_shown(value)}\n" for key, value in search.best.params.items()]
    return "".join(lines), ["The directory of a launcher has them as an experiment."]


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write_page(path: Path, args: argparse.Namespace, reload_s: float = 0) -> Path:
    """Writes the page about a search, prints its account, and returns the path of the page."""
    search = load_search(path)
    keys = " and ".join(f"{k}={space}" for k, space in search.settings.get("space", {}).items())
    settings, use = best_settings(search)
    parts = [
        page.paragraph(args.question or f"Which settings are best among {keys}?"),
        page.section("Trials", page.sentences(account(search))),
        page.section("Best settings", page.paragraph(settings, "file") + page.sentences(use)),
        *(page.section(title, page.chart(x.to_json())) for title, x in figures(search).items()),
        page.section("Every trial", page.table(trial_table(search), "trials")),
    ]
    file: Path = args.output or search.home / "report.html"
    text = page.document(args.title or search.home.resolve().name, parts, reload_s=reload_s)
    cli.write_text(file, text)
    print(*account(search), *use, f"report: {file}", sep="\n")
    if args.csv:
        cli.write_text(args.csv, trial_table(search).to_csv(index=False))
        print(f"trials: {args.csv}")
    return file


def figures(search: StoredSearch) -> dict[str, Any]:
    """Optuna's interactive figures by title; importances (PED-ANOVA) need trials that differ."""
    from optuna import visualization
    from optuna.importance import PedAnovaImportanceEvaluator

    study, name = search.study, search.value_name
    drawn = {"History": visualization.plot_optimization_history(study, target_name=name)}
    if any(trial.intermediate_values for trial in search.trials):  # pruned trials end early
        drawn["Evaluations of every trial"] = visualization.plot_intermediate_values(study)
    if len({trial.value for trial in search.named("COMPLETE")}) > 1:
        drawn["Importances"] = visualization.plot_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(), target_name=name
        )
    drawn["Settings and values"] = visualization.plot_parallel_coordinate(study, target_name=name)
    return drawn
