"""Tables of pages say what benchmarks and the studies' runs wrote."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import data
from tests.analysis.synthetic import Job, write_run, write_sweep
from walle.analysis import compare, iteration_time, speedup, time_percentage
from walle.analysis.measuring.stats import mean_interval
from walle.analysis.runs import load

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "benchmarks" / "measured"
RESULTS = "".join(
    (ROOT / "docs" / f"{page}.md").read_text()
    for page in ("results", "notes/results", "collection", "scaling", "sixteen_cores", "cluster")
)
COLLECTING = {
    "limit": "`mj_step` from Python",
    "walle": "walle",
    "one-sampler": "walle, one sampler",
    "envpool-64": "EnvPool, 64 environments, the same torch policy",
    "envpool-256": "EnvPool, 256 environments",
    "envpool-async-256": "EnvPool, asynchronous, 256 environments",
    "sb3-dummy": "Stable-Baselines3, DummyVecEnv of 8",
}
COLLECTING_ON_16 = {
    "limit": "`mj_step` from Python, 16 processes",
    "walle": "walle",
    "one-sampler": "walle, one sampler",
    "envpool-256": "EnvPool, 256 environments",
    "envpool-async": "EnvPool, asynchronous, 64 environments",
    "envpool-async-256": "EnvPool, asynchronous, 256 environments",
}
REPLAY = {
    "mkl": "the products of hidden layers alone, by `torch.mm`",
    "walle-compiled": "walle, compiled",
    "sbx": "SBX",
    "walle-eager": "walle, eager",
    "sb3": "Stable-Baselines3",
}
LEARNERS = {
    "walle-compiled": "one",
    "walle-2-shards": "one, `learner.shards=2`",
    "walle-2-learners": "two, `learner.shards=2`",
}
ROUNDS = {
    "walle": "walle, lock-step",
    "walle-overlapped": "walle, overlapped",
    "sbx": "SBX",
    "sb3": "Stable-Baselines3",
    "sb3-cleanrl": "Stable-Baselines3, CleanRL's hyperparameters",
}
RACE = {
    "walle": "walle",
    "walle-overlapped": "walle, overlapped",
    "walle-cold": "walle, an empty cache of compiled learners",
    "walle-small": "walle, minibatches of 64",
    "sbx-ours": "SBX, walle's settings with minibatches of 64",
    "sbx-zoo": "SBX, Zoo",
    "sb3-zoo": "Stable-Baselines3, Zoo",
    "sample-factory": "Sample Factory",
}


def measured(name):
    return json.loads((ROOT / "benchmarks" / "measured" / f"{name}.json").read_text())


def ratio(values, base):
    """The median of the turns' ratios with their range; 1 for a contestant beside itself."""
    if values is base:
        return "1"
    turns = [value / of for value, of in zip(values, base, strict=False)]
    return f"{statistics.median(turns):.2f} ({min(turns):.2f} - {max(turns):.2f})"


def row(*cells):
    return f"| {' | '.join(cells)} |"


def spread(values, digits):
    return f"{min(values):,.{digits}f} - {max(values):,.{digits}f}"


def learning():
    for case in measured("learn")["cases"]:
        s = {name: result["seconds"] for name, result in case["results"].items()}
        same, peers = s["walle-same"], ("jax-scan", "sbx", "sb3")
        yield row(
            f"{case['width']}x{case['width']}, {case['minibatch']:,}",
            f"{statistics.median(same):.3f} s ({spread(same, 3)})",
            *(ratio(s[name], same) for name in (*peers, "walle-compiled", "mkl", "openblas")),
        )


def replay():
    cases = {case["algorithm"]: case for case in measured("off_policy")["cases"]}
    for name, title in REPLAY.items():
        cells = []
        for algorithm in ("sac", "td3"):
            case = cases[algorithm]
            s = {each: result["seconds"] for each, result in case["results"].items()}
            rates = [case["updates"] / seconds for seconds in s[name]]
            middle = case["updates"] / statistics.median(s[name])
            cells += [f"{middle:.0f}", spread(rates, 0), ratio(s[name], s["walle-compiled"])]
        yield row(title, *cells)


def without_avx512():
    """The time of one update."""
    for case in measured("learn_avx2")["cases"]:
        s = {name: result["seconds"] for name, result in case["results"].items()}
        middle = f"{1000 * statistics.median(s['walle-same']):,.0f} ms"
        ratios = (ratio(s[name], s["walle-same"]) for name in ("jax-scan", "sbx", "sb3"))
        yield row(f"PPO, {case['width']}x{case['width']}, {case['minibatch']:,}", middle, *ratios)
    for case in measured("off_policy_avx2")["cases"]:
        s = {name: result["seconds"] for name, result in case["results"].items()}
        middle = f"{1000 * statistics.median(s['walle-compiled']) / case['updates']:.1f} ms"
        ratios = (ratio(s[n], s["walle-compiled"]) if n in s else "" for n in ("sbx", "sb3"))
        yield row(f"{case['algorithm'].upper()}, 256x256, 256", middle, "", *ratios)


def rounds():
    s = {name: result["seconds"] for name, result in measured("rounds")["rounds"].items()}
    for name, title in ROUNDS.items():
        middle = f"{statistics.median(s[name]):.2f} s"
        yield row(title, middle, spread(s[name], 2), ratio(s[name], s["walle"]))


def collecting():
    (rates,) = measured("collect_halfcheetah")["steps_per_s"].values()
    for name, title in COLLECTING.items():
        mine = rates[name]
        shares = ratio(mine, rates["limit"]), ratio(rates["walle"], mine)
        yield row(title, f"{statistics.median(mine):,.0f}", spread(mine, 0), *shares)


def other_tasks():
    for task, rates in measured("collect_ten_tasks")["steps_per_s"].items():
        pools = [rates[each] for each in rates if each.startswith("envpool")]
        limit, walle, pool = rates["limit"], rates["walle"], max(pools, key=statistics.median)
        yield row(
            task.removesuffix("-v5"),
            f"{statistics.median(limit):,.0f} ({spread(limit, 0)})",
            *(ratio(walle, limit), ratio(pool, limit), ratio(walle, pool)),
        )


def physics():
    for task, found in measured("physics")["tasks"].items():
        us = found["us"]
        loaded = f"{statistics.median(us['as-loaded']):.1f}"
        ways = (ratio(us["as-loaded"], us[way]) for way in ("no-clock", "walle"))
        yield row(task, loaded, *ways)


def sixteen_collecting():
    (rates,) = measured("sixteen_cores_collect")["steps_per_s"].values()
    for name, title in COLLECTING_ON_16.items():
        mine = rates[name]
        middle = f"{statistics.median(mine):,.0f}"
        yield row(title, middle, spread(mine, 0), ratio(rates["walle"], mine))


def sixteen_learning():
    for case in measured("sixteen_cores_learn")["cases"]:
        s = {name: result["seconds"] for name, result in case["results"].items()}
        one = s["walle-compiled"]
        yield row(
            f"{case['width']}x{case['width']}, {case['minibatch']:,}",
            f"{statistics.median(one):.3f}",
            *(ratio(one, s[f"walle-{n}-learners"]) for n in (2, 4, 8, 16)),
        )


def two_learners():
    for file in ("learners_64", "learners_256"):
        for case in measured(file)["cases"]:
            s = {name: result["seconds"] for name, result in case["results"].items()}
            yield row(
                f"{case['width']}x{case['width']}, {case['minibatch']:,}",
                *(f"{1000 * statistics.median(s[name]):.0f}" for name in LEARNERS),
                ratio(s["walle-compiled"], s["walle-2-learners"]),
            )


def two_replay_learners():
    cases = {case["algorithm"]: case for case in measured("learners_replay")["cases"]}
    for name, title in LEARNERS.items():
        cells = []
        for case in (cases["sac"], cases["td3"]):
            s = {each: result["seconds"] for each, result in case["results"].items()}
            middle = case["updates"] / statistics.median(s[name])
            rates = [case["updates"] / seconds for seconds in s[name]]
            cells += [f"{middle:.0f} ({spread(rates, 0)})", ratio(s["walle-compiled"], s[name])]
        yield row(title, *cells)


def sixteen_rounds():
    sections = measured("sixteen_cores_humanoid")["rounds"]["20480"]["sections"]
    s = {name: section["seconds"] for name, section in sections.items()}
    for setting, whole in s["whole round"].items():
        collect = s["samplers' work, mean"][setting] + s["waiting for the last one"][setting]
        learn = s["values and gradients"][setting]
        gain = s["whole round"]["1 x 1"] / whole
        yield row(setting, f"{collect:.2f}", f"{learn:.3f}", f"{whole:.2f}", f"{gain:.1f}")


def race():
    report = measured("race")
    for name, title in RACE.items():
        found = report["race"][name]
        places = [*found["to_return"].values(), found["to_steps"], found["whole"]]
        laps = [lap for lap in report["laps"] if lap["name"] == name]
        ends = [lap["marks"][-1] for lap in laps]
        yield row(
            title,
            *(each(place["seconds"]) for place in places),
            *(each([lap["launch"][part] for lap in laps]) for part in ("startup_s", "compile_s")),
            each([end[1] for end in ends], 0),
            each([end[2] for end in ends], 0),
        )


def each(values, digits=1):
    """The value of each seed; a dash for what a seed did not reach."""
    return "; ".join("-" if value is None else f"{value:,.{digits}f}" for value in values)


def serial_part():
    ((_, round_),) = measured("serial")["rounds"].items()
    sections, waits = round_["sections"], ("waiting for the last one", "waiting for a learner")
    rest = ("receiving the round", "handing it to learners", "publishing", "other")
    for title, names, digits in (
        ("samplers' work, mean", None, 0),
        ("values and gradients", None, 0),
        ("sums, norms, Adam", None, 1),
        ("learning, other", None, 1),
        ("normalisers", None, 1),
        ("receiving, handing out, publishing, other", rest, 1),
        ("waiting for the last sampler, for a learner", waits, 1),
        ("whole round", None, 0),
    ):
        mine = [sections[name] for name in names or [title]]
        settings = ("1 x 1", "1 x 2", "2 x 1", "2 x 2")
        cells = [1000 * sum(each["seconds"][setting] for each in mine) for setting in settings]
        serial = 1000 * sum(each["serial_s"] for each in mine)
        texts = [f"{cell:.{digits if cell < 100 else 0}f}" for cell in cells]
        yield row(title, *texts, f"{serial:.{0 if title == 'whole round' else 1}f}")
    sums = 1000 * round_["sum_s"], *(1000 * f(round_["sum_of_turns_s"]) for f in (min, max))
    total = "{:.1f} ({:.1f} - {:.1f})".format(*sums)
    yield f"| sum of the sections (lowest and highest repetition) | | | | | {total} |"
    once = ("sums, norms, Adam", "learning, other", "normalisers", *rest)
    undivided = 1000 * sum(sections[name]["serial_s"] for name in once)
    yield f"undivided work takes {undivided:.1f} ms** of this round"


def cluster():
    found = measured("cluster")
    for case in found["exchange"]:
        ours, bare = 1e3 * case["median_s"], 1e3 * case["median_bare_s"]
        cells = f"{case['nodes']}", f"{case['bytes'] / 1e3:,.0f}", f"{ours:.1f}", f"{bare:.1f}"
        yield row(*cells, f"{ours / bare:.2f}")


def lanes():
    for task, costs in measured("lanes")["tasks"].items():
        for count in ("1", "4", "16", "64", "256"):
            cost = costs[count]
            times = [f"{cost[part]:.2f}" for part in ("total", "physics", "act", "env", "once")]
            share = cost["physics"] / cost["total"]
            yield row(task, count, f"{1e6 / cost['total']:,.0f}", *times, f"{share:.2f}")


@pytest.mark.parametrize(
    "table",
    [
        *(learning, replay, without_avx512, rounds, collecting, other_tasks, physics, race),
        *(sixteen_collecting, sixteen_learning, sixteen_rounds, two_learners, two_replay_learners),
        *(serial_part, cluster, lanes),
    ],
)
def test_every_row_of_the_page_was_measured(table):
    lines = list(table())
    assert len(lines) >= 3
    assert [line for line in lines if line not in RESULTS] == []


def test_what_is_kept_names_its_command_and_no_path():
    files = sorted((ROOT / "benchmarks" / "measured").glob("*.json"))
    assert len(files) == 21
    for file in files:
        command = json.loads(file.read_text())["provenance"]["command"]
        assert command.startswith("python benchmarks/")
        assert "/" not in command.removeprefix("python benchmarks/")


def rounds_of(name):
    (file,) = MEASURED.glob(f"{name}.csv*")
    return pd.read_csv(file, keep_default_na=False, dtype={"run": str})


def restored(name, path, chosen=None):
    """The sweep of a study, from the seconds of its rounds; only the runs that `chosen` selects."""
    rows = rounds_of(name)
    rows = rows if chosen is None else rows[chosen(rows)]
    columns, jobs = list(rows), []
    settings, times = columns[2 : columns.index("cores")], columns[columns.index("iteration") :]
    for run, mine in rows.groupby("run", sort=False):
        first, folder = mine.iloc[0].to_dict(), path / str(run)
        folder.mkdir(parents=True)
        about = {"config": {key: first[key] for key in settings}}
        about["usable_cores"] = list(range(first["cores"]))
        (folder / "run.json").write_text(json.dumps(about))
        (folder / "status.json").write_text('{"state": "completed"}')
        mine[times].to_csv(folder / "iterations.csv", index=False)
        if "return_round_mean" in times:  # the episodes of all lanes end together
            ended = mine[mine["return_round_mean"] != ""]
            together = 1000 * first["sampler.lanes"]
            steps = ended["env_steps"] // together * together
            ends = {"env_steps": steps, "lane": 0, "return": ended["return_round_mean"]}
            pd.DataFrame(ends).to_csv(folder / "episodes.csv", index=False)
        jobs.append({"directory": run, "block": first["block"]})
    (path / "manifest.json").write_text(json.dumps({"jobs": jobs}))
    return load(path)


def speedups(sweep):
    """The rows of `speedup.py` by what they measure."""
    table = speedup.study(sweep, end_to_end=True).table
    return {name: rows.reset_index() for name, rows in table.groupby("of")}


def interval(row, name, digits=2):
    middle, *bounds = (f"{row[name + end]:.{digits}f}" for end in ("", "_low", "_high"))
    return f"{middle} [{', '.join(bounds)}]"


def learning_shares(sweep):
    shares = time_percentage.study(sweep).table
    for _, cell in shares[(shares["of"] == "iteration") & (shares["part"] == "learn")].iterrows():
        yield interval(cell, "percent", 0).replace(" [", "% [", 1)


def study_collecting(path):
    sweep = restored("study_collecting", path)
    of = speedups(sweep)
    for name, title in (("collection", "collecting"), ("end to end", "whole round")):
        digits = [2, 2, 1, 1]  # of HalfCheetah with one and two samplers, and of Humanoid
        cells = zip((row for _, row in of[name].iterrows()), digits, strict=True)
        yield row(title, *(interval(cell, "seconds", d) for cell, d in cells))
    yield row("learning's share", *learning_shares(sweep))
    for name, title in (
        ("collection", "speedup of collecting"),
        ("end to end", "of the whole round"),
    ):
        cheetah, humanoid = (interval(of[name].loc[at], "speedup") for at in (1, 3))
        yield f"| {title} | | {cheetah} | | {humanoid} |"


def study_learning(path):
    rounds = speedups(restored("study_learning", path / "all"))["end to end"]
    both = restored("study_learning", path / "2", lambda x: x["sampler.n"] == x["learner.n"])
    gains = compare.study(restored("study_learning", path / "3"), by="learner.n").table
    gains = gains[gains["of"] == "steps per second"].reset_index()
    for at, title in ((0, "1 learner"), (2, "2 learners")):
        one, two = (interval(rounds.loc[at + more], "seconds") for more in (0, 1))
        yield row(title, one, two, interval(rounds.loc[at + 1], "speedup"))
    two_of_each = interval(speedups(both)["end to end"].loc[1], "speedup")
    ratios = (interval(gains.loc[at], "ratio") for at in (0, 1))
    yield row("speedup", *ratios, f"two of each: {two_of_each}")


def study_lag(path):
    sweep = restored("study_lag", path / "all")
    rounds = speedups(sweep)["end to end"]
    for at, title in ((0, "lock-step"), (2, "a lag of 1 round"), (4, "free-running")):
        rates = []
        for cell in (rounds.loc[at], rounds.loc[at + 1]):
            middle, high, low = (20480 / cell["seconds" + end] for end in ("", "_low", "_high"))
            rates.append(f"{middle:,.3g} [{low:,.3g}, {high:,.3g}]")
        yield row(title, *map(plain, rates), interval(rounds.loc[at + 1], "speedup"))
    gains = compare.study(sweep, by="sampler.max_lag=0,1").table
    gains = gains[gains["of"] == "steps per second"].reset_index()
    ratios = " | ".join(interval(gains.loc[at], "ratio") for at in (0, 1))
    yield f"| a lag of 1 round over lock-step | {ratios} | |"


def study_return(path):
    sweep = restored("study_return", path / "all")
    seconds = speedup.study(sweep, time_to_return=3000).table
    seconds = seconds[seconds["of"] == "to return 3000"].reset_index()
    samplers, learners, both = (
        compare.study(of, by=key, time_to_return=3000)
        .table.set_index("of")
        .loc[["seconds to return"]]
        for of, key in (
            (sweep, "sampler.n"),
            (sweep, "learner.n"),
            (
                restored("study_return", path / "2", lambda x: x["sampler.n"] == x["learner.n"]),
                "sampler.n",
            ),
        )
    )
    for at, title in ((0, "1 learner"), (1, "2 learners")):
        cells = (interval(seconds.loc[2 * at + more], "seconds", 1) for more in (0, 1))
        yield row(title, *cells, interval(samplers.iloc[at], "ratio"))
    ratios = (interval(learners.iloc[at], "ratio") for at in (0, 1))
    yield row("2 learners over 1", *ratios, f"two of each: {interval(both.iloc[0], 'ratio')}")
    lag = compare.study(
        restored("study_return_lag", path / "lag"), by="sampler.max_lag", time_to_return=3000
    ).table.set_index("of")
    yield f"{interval(lag.loc['seconds to return'], 'ratio')} times the seconds of lock-step"


def plain(text):
    """Numbers such as 5.23e+04 as 52,300."""
    return re.sub(r"[0-9.]+e\+[0-9]+", lambda found: f"{float(found[0]):,.0f}", text)


def study_waiting(path):
    of = speedups(restored("study_waiting", path))
    for name, title in (("collection", "collecting"), ("end to end", "whole round")):
        for ms in (20, 5):
            rows = of[name][of[name]["line"] == f"step_ms {ms}"]
            speeds = (f"{x:#.3g}" for x in rows["speedup"].iloc[1:])
            yield row(f"{title}, {ms} ms", *speeds)


@pytest.mark.parametrize(
    "table", [study_collecting, study_waiting, study_learning, study_lag, study_return]
)
def test_every_row_of_the_study_was_measured(table, tmp_path):
    page = " ".join((ROOT / "docs" / "study.md").read_text().split())
    assert [line for line in table(tmp_path) if line not in page] == []


def wall_e(path, name="wall_e_2018_short"):
    sweep = restored(name, path)
    of, learning_s = speedups(sweep), iteration_time.study(sweep, of="learn").table
    for title, rows, column in (
        ("collecting", of["collection"], "seconds"),
        ("learning", learning_s, "learn_s"),
    ):
        yield row(f"`walle`: {title}, s", *(interval(at, column) for _, at in rows.iterrows()))
    yield row("`walle`: learning's share", *learning_shares(sweep))
    yield f"| `walle`: collecting, speedup | | {interval(of['collection'].loc[1], 'speedup')} |"
    if name == "wall_e_2018_short":
        whole = interval(of["end to end"].loc[1], "speedup")
        yield f"| `walle`: end to end, speedup | | {whole} |"


def returns(name, part):
    """The return in a part of the rounds, for each task; the same with one and two samplers."""
    rounds = rounds_of(name)
    one, two = (rounds[rounds["sampler.n"] == samplers] for samplers in (1, 2))
    assert one["return_round_mean"].tolist() == two["return_round_mean"].tolist()
    for _, mine in one.groupby("env.id"):
        seeds = [x.iloc[part].mean() for _, x in mine.groupby("seed")["return_round_mean"]]
        found = mean_interval(np.array(seeds)).columns("return")
        yield interval(found, "return", 1 if abs(found["return"]) < 100 else 0)


def reacher(path):
    yield from wall_e(path, "parallel_trpo_2016")
    (last,) = returns("parallel_trpo_2016", slice(-5, None))
    yield f"the last five rounds return {last}"


def four_tasks(path):
    of = speedups(restored("parallel_trpo_2016_tasks", path))
    for name, title in (("collection", "collecting"), ("end to end", "whole round")):
        for at, samplers in ((0, "1 sampler"), (1, "2 samplers")):
            cells = (interval(cell, "seconds") for _, cell in of[name].iloc[at::2].iterrows())
            yield row(f"{title}, {samplers}, s", *cells)
    for name, title in (("collection", "of collecting"), ("end to end", "of the whole round")):
        cells = (interval(cell, "speedup") for _, cell in of[name].iloc[1::2].iterrows())
        yield row(f"speedup {title}", *cells)
    for part, title in ((slice(0, 1), "first round"), (slice(-5, None), "last five")):
        yield row(f"return of the {title}", *returns("parallel_trpo_2016_tasks", part))


@pytest.mark.parametrize("table", [wall_e, reacher, four_tasks])
def test_every_row_of_the_reproductions_was_measured(table, tmp_path):
    pages = (ROOT / "docs" / f"{page}.md" for page in ("reproductions", "notes/reproductions"))
    texts = "".join(page.read_text() for page in pages)
    assert [line for line in table(tmp_path) if line not in texts] == []


def test_the_returns_of_wall_es_figure_3_were_measured():
    rows = pd.read_csv(MEASURED / "wall_e_figure_3.csv.gz")
    ended = rows[rows["return_round_mean"].notna()].set_index("iteration")["return_round_mean"]
    texts = [
        f"{ended[(ended.index > round_ - 100) & (ended.index <= round_)].mean():,.0f}"
        for round_ in (100, 200, 500, 1000, 2000, 3200)
    ]
    page = " ".join((ROOT / "docs" / "reproductions.md").read_text().split())
    notes = " ".join((ROOT / "docs" / "notes" / "reproductions.md").read_text().split())
    assert f"take {rows['wall_s'].iloc[-1] / 60:.0f} minutes of one core" in page
    assert f"{texts[2]} in rounds 401 to 500, and {texts[-1]} [at the end]" in page
    assert (
        "is {} after 100 rounds, {} after 200, {} after 500, {} after 1,000, {} after".format(
            *texts
        )
        in notes
    )
    assert f"{texts[4]} after 2,000 and {texts[5]} after 3,200" in notes


def test_rounds_that_were_kept_give_the_figures_of_their_runs(tmp_path, monkeypatch):
    jobs = [Job(n=n, seed=seed, iterations=4) for n in (1, 2) for seed in (0, 1)]
    sweep = write_sweep(tmp_path / "runs", jobs)
    write_run(tmp_path / "runs" / "4", Job(n=2, seed=2, iterations=4, state="interrupted"))
    monkeypatch.setattr(data, "MEASURED", tmp_path)
    monkeypatch.setitem(globals(), "MEASURED", tmp_path)
    assert data.main(["mine", str(sweep), "--rounds"]) == 0
    again = restored("mine", tmp_path / "again")
    assert len(again.runs) == 4
    shutil.rmtree(sweep / "4")
    table, kept = (speedup.study(each).table for each in (load(sweep), again))
    pd.testing.assert_frame_equal(table, kept, rtol=1e-4, check_dtype=False)
