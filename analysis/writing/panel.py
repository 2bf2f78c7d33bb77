"""Builds the interactive panel of a page: any column of the runs over steps or a clock."""

from __future__ import annotations

import base64
import json

import pandas as pd

from walle.analysis.drawing import labels, style
from walle.analysis.measuring import groups, scores, stats, wall_clock
from walle.analysis.returns import X_AXES
from walle.analysis.runs import ALWAYS_JOINED, Sweep
from walle.analysis.writing import page

CLOCKS = dict(X_AXES.values())
EVALUATION = "eval "  # before the columns of eval.csv
MOST = 2_000_000  # numbers on a page
ABOUT = (
    "A click on an entry of the legend hides or shows its runs, a double click shows them alone. "
    "A thick line is the mean over the seeds that are shown, where all have a value; from three on "
    "it has a 95% band (Student's t). Core-seconds are the wall clock times the run's cores."
)
CHOICES = (("task", ""), ("y", ""), ("x", "over"), ("by", "coloured by"))


def panel(sweep: Sweep, by: str, y: str) -> str:
    """The panel; at first it draws `y` over environment steps, coloured by `by`."""
    rows, evals = scores.with_training(sweep, wall_clock.clock(sweep)), sweep.evaluations
    known = {"run", *CLOCKS, *ALWAYS_JOINED, *sweep.varying}
    if len(evals):  # between the iterations, with the clocks of the iteration before
        new = {name: f"{EVALUATION}{name}" for name in evals if name not in known}
        evals = evals[["run", "env_steps", *new]].rename(columns=new)
        rows = pd.concat([rows, evals], ignore_index=True)
        rows = rows.sort_values(["run", "env_steps"], kind="stable")
        clocks = [name for name in CLOCKS if name != "env_steps"]
        rows[clocks] = rows.groupby("run", observed=True)[clocks].ffill()
    every = map(str, rows.select_dtypes("number"))
    numbers = sorted(c for c in every if c not in known and rows[c].notna().any())
    step = -(-rows.size // MOST)
    trained = rows[rows.filter(regex=f"^{EVALUATION}").isna().all(axis=1)]
    kept = trained.groupby("run", observed=True).cumcount(ascending=False) % step == 0
    rows = rows[kept.reindex(rows.index, fill_value=True)]
    packed = rows[[*CLOCKS, *numbers]].astype("float32")
    of_run = dict(iter(packed.groupby(rows["run"].astype(str))))
    lines = [key for key in groups.line_keys(sweep, "") if key not in ("env.id", "env.name")]
    names = [run.name for run in sweep.runs]
    keys = {k: list(map(str, sweep.values(k))) for k in (by, *lines, *sweep.varying, "seed")}
    tasks, keys["run"] = [labels.task_of(run) for run in sweep.runs], names
    data = {
        "keys": keys,
        "tasks": tasks,
        "lines": {k: "" if k.endswith((".id", ".name")) else f"{k.split('.')[-1]} " for k in lines},
        "states": ["" if run.state == "completed" else run.state for run in sweep.runs],
        "off": [run.name for run in sweep.runs if run not in sweep.learning],
        "options": {"task": [*dict.fromkeys(tasks)], "y": numbers, "x": [*CLOCKS], "by": [*keys]},
        "first": {"y": y, "by": by},
        "clocks": CLOCKS,
        "columns": [
            {c: base64.b64encode(x.to_numpy().tobytes()).decode() for c, x in frame.items()}
            for frame in (of_run.get(run, packed[:0]) for run in names)
        ],
        "student": [stats.student(n - 1) if n > 2 else 0.0 for n in range(len(names) + 1)],
        "colors": [*style.COLORS[:-1], "#8a8a8a"],  # black is no colour on a dark page
    }
    texts = [ABOUT, *[f"Of {step} iterations one is drawn, and every evaluation."] * (step > 1)]
    choices = [f'<label>{text} <select id="{name}"></select></label>' for name, text in CHOICES]
    chart = page.chart(json.dumps(data, allow_nan=False), "panel") + page.sentences(texts)
    return f'<p class="choices">{"".join(choices)}</p>{chart}'
