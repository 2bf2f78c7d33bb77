"""The report of a search, from the journal of a real study."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from walle.analysis import report
from walle.analysis import search as searches
from walle.analysis.runs import BadInputError

SPACE = {
    "algo.learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
    "algo.epochs": IntDistribution(5, 20, step=5),
    "algo": CategoricalDistribution(["ppo", "a2c"]),
}


def write(journal, trials=12, name="study"):
    """A study whose value is the number of epochs; a trial is pruned, one failed, one runs."""
    study = optuna.create_study(
        study_name=name,
        storage=JournalStorage(JournalFileBackend(str(journal))),
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=0),
    )
    study.set_user_attr("search", {"seeds": [1, 2, 3], "objective": "eval", "space": {"algo": "x"}})
    for number in range(trials):
        trial = study.ask(SPACE)
        trial.report(number, 1)
        state = {3: TrialState.PRUNED, 4: TrialState.FAIL}.get(number, TrialState.COMPLETE)
        value = trial.params["algo.epochs"] + number / 100
        if number != 5:
            study.tell(trial, value if state == TrialState.COMPLETE else None, state)
    return study


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("search")
    write(directory / "study.journal")
    (directory / "experiment").mkdir()
    (directory / "experiment" / "best.yaml").write_text("# @package _global_\nalgo: {epochs: 20}\n")
    return directory


def test_the_report_tells_of_trials_best_settings_and_every_trial(directory, capsys):
    assert report.main([str(directory)]) == 0
    page = (directory / "report.html").read_text()
    titles = ("History", "Evaluations of every trial", "Importances", "Settings and values")
    for title in (*titles, "Best settings", "Every trial"):
        assert f"<h2>{title}</h2>" in page
    assert page.count('<script type="application/json" class="figure">') == 4
    assert "algo: {epochs: 20}" in page
    said = capsys.readouterr().out
    assert "12 trials: 9 complete, 1 pruned, 1 failed, 1 running." in said
    assert f"--config-dir {directory} +experiment=best" in said
    assert "median over the seeds 1, 2, 3" in said


def test_the_trials_go_into_a_table_that_is_asked_for(directory, tmp_path, capsys):
    table = tmp_path / "trials.csv"
    report.main([str(directory), "-o", str(tmp_path / "a.html"), "--csv", str(table)])
    assert f"trials: {table}" in capsys.readouterr().out
    assert len(table.read_text().splitlines()) == 1 + 12


def test_the_numbers_of_the_figures(directory):
    search = searches.load_search(directory)
    drawn = searches.figures(search)
    values, best = drawn["History"].data[:2]
    assert list(values.x) == [0, 1, 2, 6, 7, 8, 9, 10, 11]
    assert max(values.y) == best.y[-1] == search.best.value
    lines = [line for line in drawn["Settings and values"].data if line.mode == "lines"]
    assert len(lines) == 9
    assert len(searches.trial_table(search)) == 12


def test_the_setting_that_decides_is_the_most_important(tmp_path):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(100):
        trial = study.ask(SPACE)
        study.tell(trial, -trial.params["algo.epochs"] + 0.1 * len(trial.params["algo"]))
    search = searches.StoredSearch(study, tmp_path, {}, study.trials, study.best_trial)
    (bars,) = searches.figures(search)["Importances"].data
    assert bars.y[-1] == "algo.epochs"
    assert sum(bars.x) == pytest.approx(1)


def test_a_journal_that_others_share(tmp_path):
    write(tmp_path / "all.journal", name="mine")
    (tmp_path / "a").mkdir()
    results = "journal: ../all.journal\nstudy: mine\n"
    (tmp_path / "a" / "optimization_results.yaml").write_text(results)
    assert searches.load_search(tmp_path / "a").home == tmp_path / "a"
    assert len(searches.load_search(tmp_path / "all.journal").trials) == 12
    write(tmp_path / "all.journal", trials=1, name="other")
    with pytest.raises(BadInputError, match=r"several studies \(mine, other\)"):
        searches.load_search(tmp_path / "all.journal")
    assert len(searches.load_search(tmp_path / "a").trials) == 12


def test_too_little_to_draw(tmp_path, capsys):
    write(tmp_path / "study.journal", trials=1)
    assert "Importances" not in searches.figures(searches.load_search(tmp_path))
    (tmp_path / "study.journal").unlink()
    write(tmp_path / "study.journal", trials=0)
    capsys.readouterr()
    assert report.main([str(tmp_path)]) == 2
    assert "none of 0 trials is complete yet" in capsys.readouterr().err
    (tmp_path / "study.journal").write_text("nothing\nof the kind\n")
    assert report.main([str(tmp_path)]) == 2
    assert "is no journal of Optuna, or damaged" in capsys.readouterr().err
