"""What W&B's own reader finds in the files of an offline run."""

import json
import struct
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from walle.agent.sinks import WandbSink, make_sinks
from walle.errors import Interrupted
from walle.system.run_files import read_status, update_status

OPTIONS = {"project": "p", "entity": None, "group": None, "tags": ["try"], "mode": "offline"}
CONFIG = {
    "seed": 3,
    "algo": {"name": "ppo"},
    "env": {"name": "hopper"},
    "sampler": {"n": 2, "slots": 1},
    "logger": {"name": "wandb"},
}
ROW = {
    "iteration": 1,
    "env_steps": 100,
    "wall_s": 2.5,
    "iteration_s": 2.0,
    "collect_s": 1.0,
    "learn_s": 0.5,
    "compile_s": 0.0,
    "env_steps_per_s": 50.0,
    "return_mean": None,
    "kl": 0.25,
}

LOG = """
import sys
from pathlib import Path
from tests.agent.sinks.test_wandb_sink import CONFIG, OPTIONS, ROW
from walle.agent.sinks import make_sinks

(sink,) = make_sinks(["wandb"], Path(sys.argv[1]), CONFIG, OPTIONS)
sink.iteration(ROW)
sink.evaluation({"env_steps": 100, "wall_s": 2.6, "episodes": 2, "return_mean": 7.0})
sink.close({"env_steps": 100, "eval_mean": 7.0, "return_mean": None, "wall_s": 2.7})
"""  # in a process of its own, for W&B's service lives as long as the process that started it
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    for name in ("WANDB_NAME", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run.json").write_text(json.dumps({"overrides": ["sampler.n=2", "seed=3"]}))
    update_status(tmp_path, label="sampler.n=2", sweep="2026-11-22/10-00-00")
    return tmp_path


def records(directory):
    """The records of the one .wandb file below `directory`, by W&B's own message types.

    W&B has no reader in Python any more. The file is a header of 7 bytes and a log as LevelDB's:
    blocks of 32 KiB with chunks of a checksum, a length, a kind (1 whole, 4 last) and the data.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = directory.glob("wandb/offline-run-*/*.wandb")
    data, at, whole = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if at % 32768 > 32768 - 7:  # no chunk begins in the last bytes of a block
            at += 32768 - at % 32768
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield Record.FromString(whole)
            whole = b""


def items(found):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in found}


@pytest.mark.slow
def test_an_offline_run_has_name_group_tags_sections_config_and_summary(directory):
    pytest.importorskip("wandb")
    subprocess.run([sys.executable, "-c", LOG, str(directory)], check=True, cwd=ROOT)

    by_kind = {}
    for record in records(directory):
        by_kind.setdefault(record.WhichOneof("record_type"), []).append(record)
    run = by_kind["run"][0].run
    assert (run.display_name, run.run_group) == ("sampler.n=2", "2026-11-22/10-00-00")
    assert sorted(run.tags) == ["hopper", "ppo", "try"]
    config = items(run.config.update)
    assert config["sampler"] == {"n": 2}
    assert config["algo"] == {"name": "ppo"}
    assert "logger" not in config
    rows = [items(record.history.item) for record in by_kind["history"]]
    assert rows[0]["time/collect_s"] == 1.0
    assert (rows[0]["loss/kl"], rows[0]["env_steps"]) == (0.25, 100)
    assert "return/return_mean" not in rows[0]
    assert rows[1]["eval/return_mean"] == 7.0
    summary = {}
    for record in by_kind["summary"]:
        summary |= items(record.summary.update)
    assert summary["summary/eval_mean"] == 7.0
    assert read_status(directory)["wandb"]["id"] == run.run_id


def test_a_resumed_run_goes_on_with_its_wandb_run_and_a_name_of_the_variable_wins(
    directory, monkeypatch
):
    wandb = pytest.importorskip("wandb")
    asked = []

    def init(**arguments):
        asked.append(arguments)
        return SimpleNamespace(
            id="abc", offline=True, resumed=False, define_metric=lambda *_, **__: None
        )

    monkeypatch.setattr(wandb, "init", init)
    make_sinks(["wandb"], directory, CONFIG, OPTIONS | {"group": "mine"})
    monkeypatch.setenv("WANDB_NAME", "chosen")
    (sink,) = make_sinks(["wandb"], directory, CONFIG, OPTIONS)
    assert isinstance(sink, WandbSink)
    first, second = asked
    assert (first["id"], first["resume"], first["group"]) == (None, None, "mine")
    assert (second["id"], second["resume"], second["name"]) == ("abc", None, "chosen")
    make_sinks(["wandb"], directory, CONFIG, OPTIONS | {"mode": "online"})
    assert (asked[2]["id"], asked[2]["resume"]) == ("abc", "allow")


def test_names_that_walle_chooses_are_as_short_as_wandb_demands(directory, monkeypatch):
    wandb = pytest.importorskip("wandb")
    asked = []

    def init(**arguments):
        asked.append(arguments)
        return SimpleNamespace(
            id="abc", offline=True, resumed=False, define_metric=lambda *_, **__: None
        )

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setenv("WANDB_NAME", 200 * "n")
    config = CONFIG | {"algo": {"name": f"{80 * 'a'}:Own"}}
    make_sinks(["wandb"], directory, config, OPTIONS | {"group": 200 * "g"})
    assert (asked[0]["name"], asked[0]["group"]) == (128 * "n", 128 * "g")
    assert asked[0]["tags"] == [64 * "a", "hopper", "try"]


RESUMED = """
import sys
from pathlib import Path
from tests.agent.sinks.test_wandb_sink import CONFIG, OPTIONS, ROW
from walle.agent.csv_file import CsvFile
from walle.agent.sinks import make_sinks
from walle.system.run_files import update_status

directory, checkpoint, lengths = Path(sys.argv[1]), None, {}
update_status(directory, info=["is_success"])
for first, last, saved in ((0, 3, 2), (2, 4, 3), (3, 5, 5)):  # killed twice
    (sink,) = make_sinks(["wandb"], directory, CONFIG, OPTIONS, checkpoint)
    logs = {"eval": sink.evaluation, "iterations": sink.iteration}
    files = {name: CsvFile(directory / f"{name}.csv", length=lengths.get(name)) for name in logs}
    for number in range(first, last):
        both = {"env_steps": 100 * number + 100, "wall_s": float(first)}
        own = {**ROW, **both, "is_success_mean": 0.5}
        rows = {"eval": {**both, "return_mean": 7.0}, "iterations": own}
        for name, log in logs.items():
            log(rows[name], *[["is_success_mean"]] * (name == "iterations"))
            files[name].append([rows[name]])
        if number + 1 == saved:
            lengths = {name: file.length for name, file in files.items()}
            checkpoint = {"env_steps": both["env_steps"], "recorder": {"lengths": lengths}}
    sink._run.finish()
"""


@pytest.mark.slow
def test_an_offline_run_that_was_resumed_twice_is_one_run_without_a_gap_or_a_repetition(directory):
    pytest.importorskip("wandb")
    subprocess.run([sys.executable, "-c", RESUMED, str(directory)], check=True, cwd=ROOT)
    rows = [items(x.history.item) for x in records(directory) if x.HasField("history")]
    assert [row["_step"] for row in rows] == list(range(10))
    assert [row["env_steps"] for row in rows] == [n for n in range(100, 600, 100) for _ in "ab"]
    assert ["eval/return_mean" in row for row in rows] == 5 * [True, False]
    assert [row["info/is_success_mean"] for row in rows if "time/wall_s" in row] == 5 * [0.5]
    walls = [row["time/wall_s"] for row in rows if "time/wall_s" in row]
    assert walls == [0, 0, 2, 3, 3]  # the rows up to the checkpoints, then those of the next run
    assert len(list(directory.glob("attempts/*/offline-run-*"))) == 2


def test_only_videos_of_the_run_are_logged_again(directory, monkeypatch):
    wandb = pytest.importorskip("wandb")
    made = SimpleNamespace(
        id="abc", offline=True, resumed=False, define_metric=lambda *_, **__: None
    )
    monkeypatch.setattr(wandb, "init", lambda **_: made)
    (sink,) = make_sinks(["wandb"], directory, CONFIG, OPTIONS)
    (directory / "videos").mkdir()
    for name in ("100.mp4", "100 copy.mp4", "200-best.mp4", "300.mp4"):
        (directory / "videos" / name).touch()
    again = []
    monkeypatch.setattr(sink, "video", lambda steps, path: again.append((steps, path.name)))
    sink.repeat(directory, {"env_steps": 200, "recorder": {"lengths": {}}})
    assert again == [(100, "100.mp4")]


@pytest.mark.parametrize(("error", "code"), [(None, 0), (ValueError, 1), (Interrupted, 0)])
def test_a_run_that_fails_is_not_finished(error, code):
    codes = []
    sink = object.__new__(WandbSink)
    sink._run = SimpleNamespace(summary={})
    sink._run.finish = lambda exit_code: codes.append(exit_code)
    with suppress(ValueError, Interrupted), ExitStack() as stack:
        stack.callback(sink.close, ROW)
        if error:
            raise error
    assert codes == [code]
