from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.synthetic import Job, set_columns, write_sweep
from walle.analysis.measuring.cells import iterations_after_warmup
from walle.analysis.planning.costs import Setup
from walle.analysis.planning.rounds import SAMPLER_S, RoundFit, fit_rounds, sentences
from walle.analysis.runs import load

BOTH = [(1, 1), (2, 1), (1, 2), (2, 2)]


def jobs(*workers: tuple[int, int], **changes: object) -> list[Job]:
    """Runs without noise: 2 s of collecting, 0.5 s of learning and 0.02 s else."""
    exact = {"serial": 0.0, "noise": 0.0, "shards": 2, "iterations": 4, **changes}
    return [Job(n=n, learners=k, **exact) for n, k in workers]  # type: ignore[arg-type]


def fitted(root: Path, *found: Job) -> list[RoundFit]:
    sweep = load(write_sweep(root, list(found)))
    return fit_rounds(sweep, iterations_after_warmup(sweep, 1))


def test_the_parts_of_a_sweep_over_samplers_and_learners(tmp_path: Path) -> None:
    (fit,) = fitted(tmp_path, *jobs(*BOTH))
    assert fit.fitted.parts == pytest.approx((0.02, 2.0, 0.5))
    assert sorted((s.samplers, s.learners) for s in fit.setups) == sorted(BOTH)
    assert (fit.lanes, fit.shards, fit.line) == (64, 2, "")


def test_the_speedup_of_many_by_hand(tmp_path: Path) -> None:
    """16 of each take 1/16, and 14 more samplers cost the agent what `walle plan` says."""
    (fit,) = fitted(tmp_path, *jobs(*BOTH))
    many = Setup(16, 16)
    assert fit.many == many
    took_s = 0.02 + 2.0 / 16 + 0.5 / 16 + 14 * SAMPLER_S
    assert fit.speedup(many, shards=16).value == pytest.approx(2.52 / took_s)
    two = 0.02 + 2.0 / 16 + 0.5 / 2 + 14 * SAMPLER_S  # two learners have all the shards
    assert fit.speedup(many).value == pytest.approx(2.52 / two)


def test_learners_that_divide_networks_are_two_at_most(tmp_path: Path) -> None:
    (fit,) = fitted(tmp_path, *jobs(*BOTH, shards=1, divide="networks"))
    assert fit.fitted.parts == pytest.approx((0.02, 2.0, 0.5))
    assert fit.many == Setup(16, 2)
    _, computed = sentences(fit, "round")
    assert "sampler.n=16 learner.n=2 learner.divide=networks, from" in computed


def test_seconds_for_a_thousand_steps_where_rounds_differ(tmp_path: Path) -> None:
    found = fitted(tmp_path, *jobs((1, 1), (2, 1)), *jobs((1, 1), (2, 1), batch_size=4096))
    assert [fit.fitted.parts.collect for fit in found] == pytest.approx([2 / 2.048, 2 / 4.096])
    assert found[1].sampler_s == pytest.approx(SAMPLER_S / 4.096)
    assert {fit.line for fit in found} == {"batch_size 2048", "batch_size 4096"}


def test_evaluations_and_checkpoints_are_no_part_of_a_round(tmp_path: Path) -> None:
    root = write_sweep(tmp_path, jobs(*BOTH))
    for path in (root / "0", root / "3"):
        rows = load(path).iterations
        set_columns(path, iteration_s=rows["iteration_s"].to_numpy() + 3.0)
        set_columns(path, "timing", evaluate_s=1.0, checkpoint_s=2.0)
    sweep = load(root)
    (fit,) = fit_rounds(sweep, iterations_after_warmup(sweep, 1))
    assert fit.fitted.parts == pytest.approx((0.02, 2.0, 0.5))


def test_what_does_not_vary_is_serial_and_said(tmp_path: Path) -> None:
    (fit,) = fitted(tmp_path, *jobs((1, 1), (2, 1), (4, 1)))
    assert fit.fitted.parts == pytest.approx((0.52, 2.0, 0.0))
    assert fit.many == Setup(16, 1)
    whole, computed = sentences(fit, "round of 2,048 steps")
    assert whole.startswith("Whole rounds (3 points), per round of 2,048 steps: 2,000 [2,000, ")
    assert "ms are divided by the samplers; 520 [520, 520] ms are serial; at most 4.85x; " in whole
    assert whole.endswith("learning is in the serial part, as learner.n does not vary.")
    assert "sampler.n=16 learner.n=1, from runs with up to 4 samplers and 1 learner." in computed


def test_a_sweep_over_learners_alone(tmp_path: Path) -> None:
    (fit,) = fitted(tmp_path, *jobs((1, 1), (1, 2)))
    assert fit.fitted.parts == pytest.approx((2.02, 0.0, 0.5))
    whole, computed = sentences(fit, "round")
    assert "collecting is in the serial part, as sampler.n does not vary" in whole
    assert "sampler.n=1 learner.n=16 learner.shards=16" in computed
    assert "with learner.shards=2, as here, " in computed


@pytest.mark.parametrize(
    "found",
    [
        jobs((1, 1), (2, 1), max_lag=1),  # learning overlaps collecting
        jobs((1, 1), (2, 2)),  # which of the two it was cannot be told
        jobs((2, 1)),
    ],
)
def test_runs_that_tell_no_parts(tmp_path: Path, found: list[Job]) -> None:
    assert fitted(tmp_path, *found) == []
