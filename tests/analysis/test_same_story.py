"""Everything that a user looks at says the same of three algorithms: what their evaluations say."""

import re
import subprocess
import sys

import pandas as pd
import pytest

from walle.analysis import report, returns
from walle.analysis.runs import load

SWEEP = [
    *("-m", "algo=ppo,a2c,dqn", "env=cartpole", "total_steps=4096", "eval.every=2048"),
    *("eval.episodes=3", "sampler.n=1", "algo.compile=false", "logger.print_every_s=1e-6"),
]


@pytest.mark.slow
def test_last_line_index_report_and_figure_say_what_evaluations_say(tmp_path):
    sweep = tmp_path / "story"
    command = [sys.executable, "-m", "walle.run", *SWEEP, f"hydra.sweep.dir={sweep}"]
    subprocess.run(command, check=True, capture_output=True, timeout=500)
    evaluations = {
        algo: pd.read_csv(sweep / str(job) / "eval.csv")["return_mean"]
        for job, algo in enumerate(("ppo", "a2c", "dqn"))
    }
    last = {algo: means.iloc[-1] for algo, means in evaluations.items()}
    assert len(set(last.values())) == 3

    index = pd.read_csv(sweep / "index.csv").set_index("algo")
    assert index["eval_mean"].to_dict() == pytest.approx(last)
    assert index["return_value"].to_dict() == pytest.approx(last)  # what a search would see
    for job, mean in enumerate(last.values()):
        said = (sweep / str(job) / "output.log").read_text()
        assert f"evaluation {mean:,.1f} (without exploration), last training episodes" in said
        *_, shown = re.findall(r"eval ([\d,.]+) ", said)  # of the line of progress
        assert shown in {f"{each:,.1f}" for each in evaluations[["ppo", "a2c", "dqn"][job]]}

    runs = load(sweep)
    drawn = returns.study(runs)
    assert any("Between algorithms evaluations are drawn" in text for text in drawn.sentences)
    ends = drawn.table.groupby("line")["return_mean"].last()
    assert ends.to_dict() == pytest.approx(last)
    page = report.build(runs)
    assert all(f"{mean:,.1f}" in page or f"{mean:.4g}" in page for mean in last.values())
