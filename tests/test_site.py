"""The documentation site builds without a warning, and its tables know all that the code has."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from walle.agent.recorder import EPISODE_COLUMNS
from walle.launcher.records import INDEX, Identity, JobRecord, Manifest, write_index, write_manifest
from walle.launcher.settings import RayConf, SlurmConf, WalleLauncherConf
from walle.timing import TraceFile

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import settings_tables

    return settings_tables


def leaves(node, prefix=""):
    """The dotted keys of all values; an empty list or mapping is a value."""
    for key, value in node.items():
        if prefix or key not in ("defaults", "hydra"):
            if isinstance(value, dict) and value:
                yield from leaves(value, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}"


@pytest.mark.parametrize(
    "file", sorted((ROOT / "conf").rglob("*.yaml")), ids=lambda file: file.stem
)
def test_every_setting_of_a_file_has_a_row_with_its_default(file, tables):
    if "hydra" in file.parts:
        return
    loaded = yaml.safe_load(file.read_text())
    rows = {one.key: one.default for one in tables.settings_of(file)}
    for row in rows:  # {a: 1, b: 2} in one line is one row
        assert row in leaves(loaded) or "{" in rows[row]
    for leaf in leaves(loaded):
        assert any(f"{leaf}.".startswith(f"{row}.") for row in rows), leaf
    for key, default in rows.items():
        value = loaded
        for part in key.split("."):
            value = value[part]
        assert yaml.safe_load(default) == value


def test_every_setting_with_a_comment_shows_it(tables):
    rows = {one.key: one.comment for one in tables.settings_of(ROOT / "conf/config.yaml")}
    assert rows["seed"].startswith("seeds every random stream")
    assert rows["objective"].endswith("steps_per_s, wall_s")  # it goes on in a second line
    assert [key for key, comment in rows.items() if not comment] == []


def test_every_setting_of_the_launcher_has_a_row_with_its_comment(tables):
    rows = tables.launcher_settings()
    keys = {key for key in vars(WalleLauncherConf()) if key not in ("_target_", "slurm", "ray")}
    keys |= {f"slurm.{key}" for key in vars(SlurmConf())}
    keys |= {f"ray.{key}" for key in vars(RayConf())}
    assert {row.key for row in rows} == keys
    assert [row for row in rows if not row.comment] == []
    defaults = {row.key: yaml.safe_load(row.default) for row in rows}
    for of_conf in ("preload", "validate", "own_settings", "hash_ignore"):
        assert defaults.pop(of_conf)
    for key, default in defaults.items():
        room, _, name = key.rpartition(".")
        owner = {"": WalleLauncherConf(), "slurm": SlurmConf(), "ray": RayConf()}[room]
        assert default == getattr(owner, name), key


def columns(section):
    """The columns that docs/files.md explains under a heading."""
    text = (DOCS / "files.md").read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`.+?`) \|", text, re.MULTILINE)
    return {name for cell in first_cells for name in re.findall(r"`(\w+)`", cell)}


def test_every_column_of_episodes_trace_and_index_is_explained(tmp_path):
    assert set(EPISODE_COLUMNS) == columns("episodes.csv")
    header = TraceFile.start(tmp_path / "trace.csv").strip()
    assert set(header.split(",")) == columns("trace.csv")
    job = JobRecord(Identity(0, (), "hash", {}), "0", 1, block=0)
    write_manifest(tmp_path, Manifest((), {}, (job,), ()))
    write_index(tmp_path)
    header = (tmp_path / INDEX).read_text().splitlines()[0].split(",")
    assert set(header) == columns("index.csv")


def in_the_tour():
    """The commands of docs/tour.md."""
    blocks = re.findall(r"```sh\n(.+?)```", (DOCS / "tour.md").read_text(), re.DOTALL)
    return [line for block in blocks for line in block.strip().splitlines()]


SMALLER = {
    "total_steps=1e5": "total_steps=4096",
    "total_steps=1.5e5": "total_steps=6144",
    "total_steps=4e4": "total_steps=8192",
    "episodes=20": "episodes=2",
    "seed=0,1,2": "seed=0",
}
QUICK = ("algo.epochs=1", "algo.compile=false", "logger.progress=quiet")


def made_small(line):
    """The arguments of a command of the tour, with less to compute."""
    words = [SMALLER.get(word, word) for word in shlex.split(line)]
    assert words.pop(0) == "walle"
    trains = words[0] == "run" and "--cfg" not in words and "resume=" not in line
    unmeasured = ("hydra.launcher.check_cores=false",) if "-m" in words else ()
    return [*words, *QUICK, *unmeasured] if trains else words


@pytest.mark.slow
def test_the_tour_runs_from_its_first_command_to_its_last(tmp_path):
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    assert set(SMALLER) <= {word for line in in_the_tour() for word in shlex.split(line)}
    for line in in_the_tour():
        command = [sys.executable, "-m", "walle", *made_small(line)]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
        assert ended.returncode == 0, (line, ended.stderr.decode())
    assert (tmp_path / "cartpole.onnx").exists()
    assert (tmp_path / "multirun" / "tour" / "report.html").exists()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning fails the build."""
    pytest.importorskip("sphinx")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-d", str(out / "trees"), str(DOCS), str(out / "html")]
    built = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert built.returncode == 0, built.stderr
    return out / "html"


@pytest.mark.slow
def test_the_site_has_every_page_setting_and_public_name(site):
    pages = {file.stem for file in DOCS.glob("*.md")}
    assert {file.stem for file in site.glob("*.html")} >= pages
    settings = (site / "settings.html").read_text()
    for key in ("algo.clip", "sampler.max_lag", "hydra.launcher.exclusive", "env.frame_skip"):
        assert f">{key}<" in settings
    api = (site / "api.html").read_text()
    import walle

    for name in set(walle.__all__) - {"__version__"}:
        assert f'id="walle.{name}"' in api
    assert 'href="../' not in (site / "architecture.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_scrolls_sideways(site, width, tmp_path):
    """A browser lays the pages out in frames of this width and says how wide they became."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("no Chromium here")
    names = ("index", "settings", "files", "api")
    frames = "".join(
        f"<iframe src={name}.html width={width} height=800></iframe>" for name in names
    )
    script = (
        "onload=()=>{document.title=[...document.querySelectorAll('iframe')].map(f=>{"
        "const e=f.contentDocument.documentElement;return e.scrollWidth-e.clientWidth}).join(' ')}"
    )
    shutil.copytree(site, tmp_path / "html")
    page = tmp_path / "html" / "frames.html"
    page.write_text(f"{frames}<script>{script}</script>")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000"]
    command = [browser, *flags, "--dump-dom", page.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=True)
    title = re.search(r"<title>([\d .-]+)</title>", run.stdout)
    assert title, run.stdout[:500]
    assert title.group(1).split() == ["0"] * len(names)
