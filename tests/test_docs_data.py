"""Tables of pages say what docs/data/ holds, and docs/data/ what runs wrote."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from benchmarks import data
from tests.analysis.synthetic import Job, write_sweep

PAGES = data.pages()
FILES = sorted((data.DOCS / "data").glob("*.csv"))
MINE = """\
run,algo,env,seed,algo.tau,commit,cpu,env_steps,return,wall_s,core_s
a/0,sac,Hopper-v5,0,null,0123,EPYC,100000,1000,1800,3600
a/0,sac,Hopper-v5,0,null,0123,EPYC,200064,3000,3600,7200
a/1,sac,Hopper-v5,1,null,0123,EPYC,100000,2000,1800,3600
a/1,sac,Hopper-v5,1,null,0123,EPYC,200064,2500,3600,7200
"""


@pytest.fixture
def docs(tmp_path, monkeypatch):
    """A folder of docs with a file of four evaluations, and one of published returns."""
    (tmp_path / "docs" / "data").mkdir(parents=True)
    monkeypatch.setattr(data, "DOCS", tmp_path / "docs")
    (data.DOCS / "data" / "mine.csv").write_text(MINE)
    names = "source,algorithm,task,version,env_steps,seeds,kind,mean,spread"
    theirs = f"{names}\nA B,SAC,Hopper,v4,200000,10,evaluation,4.25,\n"
    (data.DOCS / "data" / "published.csv").write_text(theirs)
    return data.DOCS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_table_of_a_page_is_drawn_from_the_data(page):
    assert data.with_tables(page.read_text()) == page.read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_file_is_small_complete_and_used(file):
    assert file.stat().st_size < data.MOST_BYTES
    markers = [words for page in PAGES for _, _, words, *_ in data.MARKED.findall(page.read_text())]
    assert any(re.search(rf"\b{file.stem}\b", words) for words in markers)
    if file.stem != "published":
        rows = pd.read_csv(file)
        assert list(rows) == [*data.FIRST, *list(rows)[4 : -len(data.LAST)], *data.LAST]
        assert not rows["commit"].str.contains("dirty").any()
        assert not rows["run"].str.startswith("/").any()


def table(words):
    text = data.with_tables(f"before\n<!-- table: {words} -->\nold\n<!-- end -->\nafter\n")
    assert text == data.with_tables(text)
    assert text.startswith("before\n")
    assert text.endswith("<!-- end -->\nafter\n")
    return text.splitlines()[3:-3]


def test_tables_by_hand(docs):
    names = "Hopper,Ant=100000,200000,300000"
    assert table(f"spreads mine none {names} 'published=SAC:A B'") == [
        "| task | steps | SAC, 2 seeds | SAC of A B |",
        "| --- | ---: | ---: | ---: |",
        "| Hopper | 100,000 | 1,500 ± 707 |  |",
        "| Hopper | 200,000 | 2,750 ± 354 | 4.2 |",
    ]
    assert table("core_hours mine Hopper=1500,2800,9000")[2:] == [
        "| Hopper | 1,500 | ≤ 1.5 |",  # hours 2 and 1, at the first evaluation
        "| Hopper | 2,800 | 1 of 2 seeds |",
        "| Hopper | 9,000 | not in 200,064 steps |",
    ]
    file = docs / "data" / "mine.csv"
    third = "a/2,sac,Hopper-v5,2,null,0123,EPYC,100000,3000,900,900\n"
    file.write_text(MINE + third)
    assert table("returns mine Hopper=1e5,2e5")[2:] == [
        "| Hopper | 100,000 | 2,000 [-484, 4,484] |",  # 4.303 x 1,000 / sqrt(3)
        "| Hopper | 200,000 | 2,750 (2) |",
    ]
    file.write_text((MINE + third).replace("Hopper-v5", "InvertedPendulum-v5"))
    found = table("returns mine InvertedPendulum=1e5")[-1]  # no return below 0 is possible
    assert found == "| InvertedPendulum | 100,000 | 2,000 [0, 2,000] |"
    file.write_text(MINE + third)
    assert table("core_hours mine Hopper=2900")[-1] == "| Hopper | 2,900 | ≤ 2 (2 of 3 seeds) |"
    file.write_text(MINE + third.replace("null", "0.1"))
    heads = "| task | steps | SAC, tau 0.1, 1 seed | SAC, tau null, 2 seeds |"
    assert table("returns mine Hopper=1e5")[0] == heads
    assert table("returns none Hopper=1e5") == ["Not measured yet."]


def test_a_legend_has_the_seeds_of_every_task(docs):
    ant = "".join(line for line in MINE.splitlines(keepends=True) if line.startswith("a/0"))
    (docs / "data" / "mine.csv").write_text(MINE + ant.replace("Hopper", "Ant").replace("a/0", "b"))
    drawn = data.figure(data.read_marker("env_steps mine Hopper,Ant="))
    names = {text.get_text() for legend in drawn.legends for text in legend.get_texts()}
    assert names == {"SAC (1 to 2 seeds)"}


def test_rows_of_further_runs_are_added(docs, tmp_path, capsys):
    file, names = docs / "data" / "new.csv", ["one", "other"]
    one, other = [write_sweep(tmp_path / name, [Job(seed=i)]) for i, name in enumerate(names)]
    assert data.main(["new", str(other)]) == 0
    first = file.read_text()
    for _ in range(2):  # the second time nothing changes
        assert data.main(["new", str(one), "--add"]) == 0
    rows = file.read_text().splitlines(keepends=True)
    assert [row[:5] for row in rows[1:]] == ["one/0"] * 3 + ["other"] * 3
    assert "".join([rows[0], *rows[4:]]) == first
    assert data.main(["mine", str(one), "--add"]) == 2
    assert "columns for other settings" in capsys.readouterr().err


def test_runs_become_data_and_pages(docs, tmp_path, capsys):
    jobs = [Job(n=2, seed=1), Job(), Job(seed=2, state="running")]
    sweep = write_sweep(tmp_path / "sweep", jobs)
    page = docs / "page.md"
    page.write_text(
        "<!-- table: returns new HalfCheetah=40960 -->\n<!-- end -->\n"
        "<!-- figure: core_h new HalfCheetah= -->\n![x](drawn.png)\n<!-- end -->\n"
    )
    assert data.main(["new", str(sweep), "--pages"]) == 0
    assert "left out: sweep/2: running" in capsys.readouterr().err
    rows = pd.read_csv(docs / "data" / "new.csv")
    assert rows["run"].tolist() == ["sweep/1"] * 3 + ["sweep/0"] * 3
    assert rows["sampler.n"].tolist() == [1] * 3 + [2] * 3
    assert rows["env_steps"].tolist() == [20480, 40960, 61440] * 2
    assert rows["core_s"].tolist() == pytest.approx((8 * rows["wall_s"]).tolist(), rel=1e-5)
    assert "| HalfCheetah | 40,960 |" in page.read_text()
    assert (docs / "drawn.png").stat().st_size > 1000

    again = write_sweep(tmp_path / "again", [Job()])
    assert data.main(["new", str(sweep), str(again)]) == 2
    assert "same settings and seed: sweep/1, again/0; leave out" in capsys.readouterr().err
    unfinished = write_sweep(tmp_path / "unfinished", [Job(state="running")])
    assert data.main(["new", str(unfinished)]) == 2
    assert "no completed run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        data.main(["new"])
