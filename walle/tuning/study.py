"""The study: what was tried and what came of it, in a journal that several launchers may share."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, Trial, TrialState

from walle.errors import ConfigError
from walle.system.locks import locked_file

JOURNAL, ASKING, SEARCHING = "study.journal", ".asking", ".search.lock"
SEARCH, SWEEP, JOBS, ERROR, OVERRIDES = "search", "sweep", "jobs", "error", "overrides"
WORDS = {"space": "the search space", "fixed": "the settings", "every": "eval.every"}
Direction = Literal["maximize", "minimize"]
FAILED = {"failed", "interrupted"}  # a job that somebody ended, while the search continues


class JobEnd(NamedTuple):
    """How a job of a trial ended."""

    state: str  # completed, failed, pruned, interrupted or pending
    value: Any  # what it returned; the error of a job that did not complete
    directory: Path  # where it wrote


@contextmanager
def only_search(sweep: Path) -> Iterator[None]:
    """Keeps every other search out of a sweep's directory in the body, or raises `ConfigError`."""
    sweep.mkdir(parents=True, exist_ok=True)
    error = ConfigError(
        f"another search is running in {sweep}: wait for it or end it; to share its study, use "
        "another name and the same hydra.sweeper.storage"
    )
    with locked_file(sweep / SEARCHING, 0.0, refusal=lambda _: error):
        yield


class Study:
    """A study in a journal, as one launcher sees it."""

    def __init__(
        self,
        journal: Path,
        sweep: Path,
        *,
        name: str,
        direction: Direction,
        search: Mapping[str, Any],
        space: Mapping[str, BaseDistribution],
        sampler: Callable[[int], BaseSampler],
        pruner: optuna.pruners.BasePruner,
        n_trials: int,
    ) -> None:
        """Opens the study; makes it if the journal does not hold it.

        All launchers of a study must have `search` in common, as JSON holds it. `sampler` makes the
        sampler of a trial from its number.

        Raises:
            ConfigError: the journal holds another study of this name, or is damaged.
        """
        self.journal, self._space, self._sampler = journal, space, sampler
        self.n_trials = n_trials
        self.exhausted = False  # whether the sampler has tried every point
        self._home = journal.absolute().parent
        self._sweep = os.path.relpath(sweep.absolute(), self._home)
        self._home.mkdir(parents=True, exist_ok=True)
        with locked_file(Path(f"{journal}{ASKING}")):
            self.study = _opened(journal, name, direction, pruner)
            self._refuse_other(json.loads(json.dumps({**search, "direction": direction})))
            running = self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
            # A trial without its launcher was asked for by one that was killed at that moment.
            mine = [
                trial for trial in running if trial.user_attrs.get(SWEEP) in (self._sweep, None)
            ]
        self._interrupted = [Trial(self.study, trial._trial_id) for trial in mine]
        self.resumed = len(self._interrupted)

    def _refuse_other(self, search: dict[str, Any]) -> None:
        recorded = self.study.user_attrs.get(SEARCH)
        if recorded is None:
            self.study.set_user_attr(SEARCH, search)
            return
        keys = [key for key in search if search[key] != recorded.get(key)]
        if keys:
            before, now = (json.dumps(content.get(keys[0])) for content in (recorded, search))
            what = WORDS.get(keys[0], keys[0])
            raise ConfigError(
                f"{self.journal} holds a study with {what} {before}, not {now}; undo the change, "
                "or give the new study another name (or hydra.sweeper.study_name)"
            )

    def ask(self, count: int) -> list[Trial]:
        """The next trials, at most `count`: first those that were interrupted in an earlier launch.

        Each has a value for every key of the search space; a trial keeps those that it has.
        """
        trials = [self._interrupted.pop(0) for _ in range(min(count, len(self._interrupted)))]
        with locked_file(Path(f"{self.journal}{ASKING}")):  # one launcher at a time counts and asks
            for trial in trials:  # it was interrupted before it had a value for every key
                _suggest(trial, self._space)
            # Somebody may have put trials into the queue, to be asked for first.
            waiting = self.study.get_trials(deepcopy=False, states=[TrialState.WAITING])
            started = len(self.study.get_trials(deepcopy=False)) - len(waiting)
            last = started if self.exhausted else min(started + count - len(trials), self.n_trials)
            for number in range(started, last):
                self.study.sampler = self._sampler(number)
                trials.append(self.study.ask())
                trials[-1].set_user_attr(SWEEP, self._sweep)
                _suggest(trials[-1], self._space)
        return trials

    def tell(self, trial: Trial, overrides: Sequence[str], ends: Sequence[JobEnd]) -> TrialState:
        """Records how the jobs of a trial ended; a trial with unfinished jobs resumes later.

        A trial that was refused has no jobs, and its `ERROR` is set.
        """
        directories = [os.path.relpath(end.directory.absolute(), self._home) for end in ends]
        trial.set_user_attr(JOBS, directories)
        trial.set_user_attr(OVERRIDES, list(overrides))
        states = {end.state for end in ends}
        if "pending" in states and not states & FAILED:  # the launcher was stopped before
            return TrialState.RUNNING
        errors = [str(end.value) for end in ends if end.state in FAILED]
        value = None if errors or "pruned" in states else _median(ends)
        if isinstance(value, str):
            errors, value = [value], None
        if errors:
            trial.set_user_attr(ERROR, errors[0])
        state = TrialState.PRUNED if "pruned" in states else TrialState.COMPLETE
        if errors or not ends:
            state = TrialState.FAIL
        try:
            self.study.tell(trial, value if state == TrialState.COMPLETE else None, state)
        except RuntimeError as error:  # raised by a sampler without further points
            if "Study.stop" not in str(error):
                raise
            self.exhausted = True
        return state

    def finished(self) -> list[FrozenTrial]:
        """The trials that ended, by their numbers."""
        trials = self.study.get_trials(deepcopy=False)
        return [trial for trial in trials if trial.state.is_finished()]

    def elsewhere(self) -> list[str]:
        """The directories of other launchers with trials that have not ended."""
        running = self.study.get_trials(deepcopy=False, states=[TrialState.RUNNING])
        return sorted({str(trial.user_attrs.get(SWEEP)) for trial in running} - {self._sweep})

    def best(self) -> FrozenTrial | None:
        """The best trial; None before one is complete."""
        complete = any(trial.state == TrialState.COMPLETE for trial in self.finished())
        return self.study.best_trial if complete else None


def _suggest(trial: Trial, space: Mapping[str, BaseDistribution]) -> None:
    for key, values in space.items():
        if isinstance(values, CategoricalDistribution):
            trial.suggest_categorical(key, values.choices)
        elif isinstance(values, IntDistribution):
            trial.suggest_int(key, values.low, values.high, step=values.step, log=values.log)
        elif isinstance(values, FloatDistribution):
            trial.suggest_float(key, values.low, values.high, step=values.step, log=values.log)


def _opened(
    journal: Path, name: str, direction: Direction, pruner: optuna.pruners.BasePruner
) -> optuna.Study:
    if journal.exists():  # Optuna would fail at a line that a launcher could not finish
        lock = JournalFileSymlinkLock(str(journal))
        lock.acquire()
        try:
            content = journal.read_bytes()
            complete = content.rfind(b"\n") + 1
            if complete < len(content):
                os.truncate(journal, complete)
        finally:
            lock.release()
    try:
        storage = JournalStorage(JournalFileBackend(str(journal)))
        return optuna.create_study(
            storage=storage,
            study_name=name,
            direction=direction,
            pruner=pruner,
            load_if_exists=True,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{journal} is no journal of Optuna, or damaged ({error}); give another file with "
            "hydra.sweeper.storage"
        ) from error


def _median(ends: Sequence[JobEnd]) -> float | str | None:
    """The median of the jobs' results; a text that says what is wrong with one of them."""
    for end in ends:
        if not isinstance(end.value, int | float) or end.value != end.value:
            return (
                f"{end.directory} returned {end.value!r}, which is no number: a search needs one; "
                "for walle see objective and eval.every"
            )
    return float(statistics.median(end.value for end in ends)) if ends else None
