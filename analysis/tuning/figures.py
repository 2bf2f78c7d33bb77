"""The figures and the page of a search for settings; they need no files of its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from walle.analysis.drawing import coordinates, style
from walle.analysis.loading.directories import BadInputError, counted
from walle.analysis.tuning.search import Search, account, best_settings, table, value_of
from walle.analysis.writing import cli, page

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

FEW = 2  # complete trials, from which importances can be told


def build(
    search: Search,
    figure: Callable[[str, Callable[[], cli.Study], set[str]], str],
    *,
    title: str,
    question: str | None = None,
) -> str:
    """The page about a search as text.

    Args:
        search: the search.
        figure: makes a section from its title, a function that draws, and what was said before.
        title: the title of the page.
        question: the question of the search; by default which settings are best.
    """
    keys = " and ".join(f"{key}={space}" for key, space in search.asked.get("space", {}).items())
    draws = {"History": history, "Importances": importances, "Settings and values": parallel}
    settings, use = best_settings(search)
    told: set[str] = set()
    parts = [
        page.paragraph(question or f"Which settings are best among {keys}?"),
        page.section("Trials", page.sentences(account(search))),
        page.section("Best settings", page.verbatim(settings) + page.sentences(use)),
        *(figure(name, partial(draw, search), told) for name, draw in draws.items()),
        page.section("Every trial", page.table(table(search))),
    ]
    return page.document(title, parts)


def history(search: Search) -> cli.Study:
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
    last = [_last(each) for each in cut]
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
    kept = f"{counted(len(pruned), 'trial')} pruned, after {_evaluations(pruned)} on average."
    return cli.Study(figure, table, [said, kept] if pruned else [said])


def importances(search: Search) -> cli.Study:
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


def parallel(search: Search) -> cli.Study:
    """Every trial as a line through its settings, coloured by its value."""
    complete = search.named("COMPLETE")
    scales = [coordinates.scale(key, search.trials) for key in search.best.params]
    values = [value_of(each) for each in complete]
    scales.append(coordinates.of_numbers(search.value_name, values))
    worst_first = sorted(complete, key=value_of, reverse=search.study.direction.name == "MINIMIZE")
    lines = [{**each.params, search.value_name: value_of(each)} for each in worst_first]
    cut = [dict(each.params) for each in search.named("PRUNED")]
    figure = coordinates.draw(scales, lines, cut)
    table = pd.DataFrame(lines[::-1])
    said = "Each line is a complete trial, from the worst (dark) to the best (bright)."
    grey = " Grey lines are pruned trials." if cut else ""
    return cli.Study(figure, table, [f"{said}{grey} The best trial is drawn thick."])


def _last(trial: FrozenTrial) -> float:
    return trial.intermediate_values[max(trial.intermediate_values)]


def _evaluations(trials: Sequence[FrozenTrial]) -> str:
    mean = sum(len(each.intermediate_values) for each in trials) / max(1, len(trials))
    return f"{mean:.1f} evaluations"
