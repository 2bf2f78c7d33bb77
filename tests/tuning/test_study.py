"""A study in its journal: shared, broken off, damaged."""

import csv
import threading
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from walle.errors import ConfigError
from walle.tuning.settings import WalleOptunaConf
from walle.tuning.sweep import (
    ERROR,
    JOBS,
    SWEEP,
    JobEnd,
    JournalLock,
    Study,
    only_search,
    trial_table,
)

SPACE = {
    "x": FloatDistribution(0, 1),
    "n": IntDistribution(1, 9),
    "c": CategoricalDistribution(["a", "b"]),
}


@pytest.fixture
def opened(tmp_path):
    def _opened(sweep="one", n_trials=10, direction="maximize", **search):
        storage = str(tmp_path / "study.journal")
        settings = WalleOptunaConf(sampler="random", storage=storage, n_trials=n_trials)
        search = {"space": "here", **search}
        return Study(tmp_path / sweep, settings, direction=direction, search=search, space=SPACE)

    return _opened


def end(value=1.0, state="completed"):
    return JobEnd(state, value, Path("jobs/0"))


def states(study):
    return [each.state for each in study.study.trials]


def test_a_trial_is_the_median_of_its_jobs(opened):
    study = opened()
    (trial,) = study.ask(1)
    assert study.tell(trial, ["x=1"], [end(3), end(1.0), end(100)]) == TrialState.COMPLETE
    best = study.best()
    assert best.value == 3.0
    assert best.params == trial.params
    assert best.params.keys() == SPACE.keys()
    assert len(best.user_attrs[JOBS]) == 3


def test_the_evaluations_of_a_complete_trial_count(opened):
    study = opened()
    (trial,) = study.ask(1)
    trial.report(7.0, 1)  # by a pruner
    seeds = ({1: 1.0, 2: 2.0, 3: 3.0}, {1: 3.0, 2: 4.0, 3: 5.0}, {1: 9.0, 2: 9.0})
    study.tell(trial, [], [end()._replace(evaluations=each) for each in seeds])
    assert study.study.trials[0].intermediate_values == {1: 7.0, 2: 4.0}
    (row,) = csv.DictReader(trial_table(study).splitlines())
    assert (row["evaluations"], row["last_evaluation"]) == ("2", "4.0")


@pytest.mark.parametrize(
    ("ends", "state", "error"),
    [
        ([end(), end("it broke", "failed")], TrialState.FAIL, "it broke"),
        ([end("stopped", "interrupted")], TrialState.FAIL, "stopped"),
        ([end(), end("why", "pruned")], TrialState.PRUNED, None),
        ([end("x", "failed"), end("y", "pending")], TrialState.FAIL, "x"),
        ([end(None)], TrialState.FAIL, "returned None, which is no number"),
        ([end(float("nan"))], TrialState.FAIL, "returned nan"),
        ([end([1, 2])], TrialState.FAIL, "returned [1, 2]"),
        ([], TrialState.FAIL, None),
        ([end("y", "pending")], TrialState.RUNNING, None),
    ],
)
def test_how_trials_end(opened, ends, state, error):
    study = opened()
    (trial,) = study.ask(1)
    assert study.tell(trial, [], ends) == state == states(study)[0]
    assert (error or "") in study.study.trials[0].user_attrs.get(ERROR, "")
    assert study.best() is None


def test_two_launchers_share_exactly_the_trials_of_one_study(opened):
    numbers = []

    def search(sweep):
        study = opened(sweep)
        while trials := study.ask(2):
            numbers.extend(trial.number for trial in trials)
            for trial in trials:
                study.tell(trial, [], [end(trial.params["x"])])

    both = [threading.Thread(target=search, args=(sweep,)) for sweep in ("one", "two")]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert sorted(numbers) == list(range(10))
    study = opened()
    assert states(study) == [TrialState.COMPLETE] * 10
    assert len({tuple(each.params.values()) for each in study.study.trials}) == 10


def test_broken_off_trials_go_on_in_their_own_directory(opened):
    opened("one").ask(2)
    opened("two").ask(1)
    again = opened("one")
    assert again.resumed == 2
    assert again.elsewhere() == ["two"]
    first = again.ask(3)
    assert [trial.number for trial in first] == [0, 1, 3]
    assert first[0].params == again.study.trials[0].params
    for trial in first:
        again.tell(trial, [], [end()])
    assert again.resumed == 2
    assert [trial.number for trial in again.ask(20)] == [4, 5, 6, 7, 8, 9]
    assert again.ask(1) == []


def test_a_trial_of_nobody_is_taken_up_and_completed(opened, tmp_path):
    (undisturbed,) = opened().ask(1)
    (tmp_path / "study.journal").unlink()
    study = opened()
    study.study.ask()  # killed before its values and its launcher were written
    again = opened("two")
    (trial,) = again.ask(1)
    assert trial.number == 0
    assert trial.params == undisturbed.params
    assert again.resumed == 1


def test_a_search_that_was_broken_off_asks_for_the_same_trials(opened, tmp_path):
    whole = [trial.params for trial in opened().ask(4)]
    (tmp_path / "study.journal").unlink()
    opened().ask(2)
    again = [trial.params for trial in opened().ask(4)]
    assert again == whole


def test_half_a_line_at_the_end_of_the_journal_costs_nothing(opened, tmp_path):
    study = opened()
    (trial,) = study.ask(1)
    study.tell(trial, [], [end(5)])
    with (tmp_path / "study.journal").open("a") as journal:
        journal.write('{"op_code":4,"wor')
    again = opened()
    (trial,) = again.ask(1)
    again.tell(trial, [], [end(6)])
    assert [each.value for each in opened().study.trials] == [5, 6]


def test_half_a_line_of_a_killed_search_is_removed_by_those_that_go_on(opened, tmp_path):
    study = opened()
    first, second = study.ask(2)
    study.tell(first, [], [end(5)])
    with (tmp_path / "study.journal").open("a") as journal:
        journal.write('{"op_code":4,"wor')
    study.tell(second, [], [end(6)])
    assert [each.value for each in opened().study.trials] == [5, 6]


def test_a_lock_that_optuna_left_holds_nobody_up(opened, tmp_path):
    left = tmp_path / "study.journal.lock"
    left.symlink_to("here/study.journal")  # of a relative directory: it points nowhere
    study = opened()
    (trial,) = study.ask(1)
    assert study.tell(trial, [], [end()]) == TrialState.COMPLETE


def test_one_process_at_a_time_holds_the_journal(tmp_path):
    journal, waited = tmp_path / "study.journal", threading.Event()
    first, second = JournalLock(journal), JournalLock(journal)
    first.acquire()

    def other():
        second.acquire()
        waited.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert not waited.wait(0.1)
    first.release()
    thread.join()
    assert waited.is_set()
    second.release()


def test_another_search_in_the_same_journal_is_refused(opened, tmp_path):
    opened(seeds=[1])
    with pytest.raises(ConfigError, match=r"holds a study with seeds \[1\], not \[2\]"):
        opened(seeds=[2])
    with pytest.raises(ConfigError, match="with direction"):
        opened(seeds=[1], direction="minimize")
    (tmp_path / "study.journal").write_text("no journal\nat all\n")
    with pytest.raises(ConfigError, match=r"is no journal of Optuna, or damaged"):
        opened(seeds=[1])


def test_a_file_of_one_line_is_no_journal_and_stays(opened, tmp_path):
    (tmp_path / "study.journal").write_text('{"a": 1}')
    with pytest.raises(ConfigError, match=r"is no journal of Optuna, or damaged"):
        opened()
    assert (tmp_path / "study.journal").read_text() == '{"a": 1}'


@pytest.mark.parametrize("name", ["grid", "bruteforce"])
def test_a_sampler_that_tried_everything_ends_the_search(name, tmp_path):
    space = {
        "n": IntDistribution(1, 5, step=2),
        "x": FloatDistribution(0, 0.5, step=0.5),
        "c": CategoricalDistribution(["a"]),
    }
    settings = WalleOptunaConf(sampler=name, n_trials=50)
    study = Study(tmp_path, settings, direction="maximize", search={}, space=space)
    tried = []
    while trials := study.ask(1):
        tried.append((trials[0].params["n"], trials[0].params["x"]))
        assert study.tell(trials[0], [], [end()]) == TrialState.COMPLETE
    assert study.exhausted
    assert sorted(tried) == [(n, x) for n in (1, 3, 5) for x in (0, 0.5)]
    again = Study(tmp_path, settings, direction="maximize", search={}, space=space)
    assert again.exhausted
    assert again.ask(1) == []


def test_one_search_a_directory(tmp_path):
    second = only_search(tmp_path)
    with only_search(tmp_path), pytest.raises(ConfigError, match="another search is running"):
        second.__enter__()
    with only_search(tmp_path):
        pass


def test_trials_in_the_queue_come_first(opened):
    study = opened(n_trials=2)
    study.study.enqueue_trial({"x": 0.5})
    first, second = study.ask(5)
    assert first.params["x"] == 0.5
    assert first.study.trials[0].user_attrs[SWEEP] == "one"
    assert second.number == 1
