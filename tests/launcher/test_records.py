from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest

from walle.errors import ConfigError
from walle.launcher.records import (
    Identity,
    JobRecord,
    Manifest,
    Progress,
    common_part,
    duration_s,
    has_launcher,
    is_done,
    is_recordable,
    job_label,
    jobs_locked,
    last_lines,
    launcher_locked,
    python_scalar,
    read_manifest,
    read_progress,
    write_index,
    write_manifest,
)
from walle.system.identity import comparable_leaves, config_hash, flatten
from walle.system.run_files import update_status

REPLACED = {
    "sampler": "sampler-1",
    "when": "2026-01-01T00:00:01+00:00",
    "round": 1,
    "why": "was killed by SIGKILL",
}


def manifest():
    jobs = tuple(
        JobRecord(Identity(n, (f"n={n}", "a=1"), f"hash{n}", {"n": n, "a": 1}), str(n), n)
        for n in (0, 1)
    )
    return Manifest(("n",), {"order": "given"}, jobs, ({"started": "now"},))


def test_a_manifest_comes_back_as_it_was(tmp_path):
    write_manifest(tmp_path, manifest())
    assert read_manifest(tmp_path) == manifest()
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["common"] == {"a": 1}
    assert [job["config"] for job in content["jobs"]] == [{"n": 0}, {"n": 1}]


def test_a_directory_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no manifest\.json"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text('{"jobs": 3}')
    with pytest.raises(ConfigError, match="is damaged"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("damage", [b"[1, 2]", b"{", b'{"common": "caf\xe9"}', b"\xff\xfe"])
def test_a_damaged_manifest_is_named(tmp_path, damage):
    (tmp_path / "manifest.json").write_bytes(damage)
    with pytest.raises(ConfigError, match=r"manifest\.json is damaged .*: restore or remove it"):
        read_manifest(tmp_path)


def test_the_index_shows_damaged_statuses_and_names_without_encoding(tmp_path):
    write_manifest(tmp_path, manifest())
    text = (tmp_path / "manifest.json").read_text().replace("n=0", r"n=\udcff")
    (tmp_path / "manifest.json").write_text(text)
    for job, damage in enumerate((b"[3]", b'{"started": "soon", "state": "running"}')):
        (tmp_path / str(job)).mkdir()
        (tmp_path / str(job) / "status.json").write_bytes(damage)
    write_index(tmp_path)
    rows = list(csv.DictReader((tmp_path / "index.csv").open(encoding="utf-8")))
    assert [row["state"] for row in rows] == ["pending", "running"]
    assert [row["duration_s"] for row in rows] == ["", ""]
    assert rows[0]["overrides"] == r"n=\udcff a=1"


def test_done_is_completed_with_this_config_and_a_value():
    status = {"state": "completed", "config_hash": "h", "return_value": None}
    assert is_done(status, "h")
    assert not is_done(status, "other")
    assert not is_done(status | {"state": "failed"}, "h")
    assert not is_done({"state": "completed", "config_hash": "h"}, "h")


@pytest.mark.parametrize(
    "value", [None, 1, 1.5, "x", [1, 2], {"a": [1.0]}, float("inf"), float("nan")]
)
def test_values_that_json_gives_back(value):
    assert is_recordable(value)


def test_scalars_of_other_libraries_become_pythons():
    assert type(python_scalar(np.float32(0.5))) is float
    assert type(python_scalar(np.int64(3))) is int
    assert python_scalar([1]) == [1]


@pytest.mark.parametrize("value", [(1, 2), [(1,)], {1: 2}, object(), {3}, b"x"])
def test_values_that_json_changes(value):
    assert not is_recordable(value)


def test_the_index_has_a_row_a_job(tmp_path):
    write_manifest(tmp_path, manifest())
    update_status(
        tmp_path / "0",
        state="completed",
        cores=[0, 1],
        attempts=2,
        error="WorkerError: it died\nits first note\n",
        replacements=[REPLACED],
        started="2026-01-01T00:00:00+00:00",
        ended="2026-01-01T00:00:02.500+00:00",
        return_value=3.5,
    )
    (tmp_path / "0" / "iterations.csv").write_text("iteration,env_steps,extra\n1,10,x\n2,20,y\n")
    write_index(tmp_path)
    with (tmp_path / "index.csv").open() as file:
        done, pending = csv.DictReader(file)
    assert (done["job"], done["state"], done["directory"], done["n"]) == (
        "0",
        "completed",
        "0",
        "0",
    )
    assert (done["cores"], done["duration_s"], done["return_value"]) == ("0 1", "2.5", "3.5")
    assert (done["iteration"], done["env_steps"], done["return_mean"]) == ("2", "20", "")
    assert (done["attempts"], done["replacements"]) == ("2", "1")
    assert done["error"] == "WorkerError: it died"
    assert (pending["state"], pending["overrides"]) == ("pending", "n=1 a=1")
    assert (pending["attempts"], pending["replacements"]) == ("", "")
    assert list(done)[-len(Progress._fields) :] == list(Progress._fields)


def test_progress_is_the_last_row(tmp_path):
    assert read_progress(tmp_path) == Progress()
    file = tmp_path / "iterations.csv"
    file.write_text("iteration,env_steps,wall_s,return_mean,env_steps_per_s\n")
    assert read_progress(tmp_path) == Progress()
    with file.open("a") as stream:
        for iteration in range(1, 2001):  # longer than what is read from the end
            stream.write(f"{iteration},{iteration * 10},{iteration / 2},,7.5\n")
    assert read_progress(tmp_path) == Progress(2000, 20000, 1000.0, None, 7.5)
    for half in ("2001,20", "2001,20010,1000.5,,8", "-"):  # killed, or still writing
        with file.open("a") as stream:
            stream.write(half)
        assert read_progress(tmp_path) == Progress(2000, 20000, 1000.0, None, 7.5)


def test_progress_has_the_last_evaluation(tmp_path):
    (tmp_path / "eval.csv").write_text("env_steps,return_mean\n10,1.5\n20,2.5\n30,")
    assert read_progress(tmp_path).eval_mean == 2.5


def test_progress_of_another_applications_file(tmp_path):
    (tmp_path / "iterations.csv").write_text("iteration,return_mean,wall_s\none,-,nan\n")
    assert read_progress(tmp_path) == Progress()


def test_a_swept_key_named_as_a_column_of_the_index_keeps_both(tmp_path):
    job = JobRecord(Identity(7, ("job=3",), "hash", {"job": 3}), "7", 1)
    write_manifest(tmp_path, Manifest(("job",), {}, (job,), ()))
    write_index(tmp_path)
    with (tmp_path / "index.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["job"], row["config.job"]) == ("7", "3")


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "output.log"
    assert last_lines(log) == []
    log.write_text("one\n\ntwo\nthree\n\n")
    assert last_lines(log, lines=2) == ["two", "three"]
    assert last_lines(log, start=log.stat().st_size) == []  # the next attempt has printed nothing
    with log.open("a") as stream:
        stream.write("four\n")
    assert last_lines(log, start=log.stat().st_size - 5) == ["four"]


def test_a_runs_remaining_time_follows_its_mean_speed():
    assert Progress(env_steps=25, wall_s=50.0).remaining_s(100) == 150.0
    assert Progress(env_steps=120, wall_s=50.0).remaining_s(100) == 0.0
    assert Progress().remaining_s(100) is None
    assert Progress(env_steps=25, wall_s=50.0).remaining_s(None) is None


def test_durations():
    started, ended = "2026-01-01T00:00:00+00:00", "2026-01-01T00:01:00.250+00:00"
    assert duration_s({"started": started, "ended": ended}) == 60.25
    assert duration_s({}) is None
    assert duration_s({"started": started}) > 0


def test_a_directory_is_held_by_one_launcher(tmp_path):
    assert not has_launcher(tmp_path)
    with launcher_locked(tmp_path):
        assert has_launcher(tmp_path)
        with pytest.raises(ConfigError, match="another launcher"), launcher_locked(tmp_path):
            pass
    assert not has_launcher(tmp_path)
    with launcher_locked(tmp_path):
        pass


def test_the_jobs_of_a_launcher_that_is_gone_still_hold_it(tmp_path):
    with jobs_locked(tmp_path, 0) as jobs:
        inherited = os.dup(jobs)  # as a job's supervisor has it
    with pytest.raises(ConfigError, match="jobs of a launcher"), jobs_locked(tmp_path, 0):
        pass
    os.close(inherited)
    with jobs_locked(tmp_path, 0):
        pass


def test_a_label_holds_the_overrides_that_differ():
    assert job_label(["n=1", "+extra=2", "steps=9"], {"n", "extra"}) == "n=1 +extra=2"
    assert job_label(["steps=9"], {"n"}) == "(the only job)"
    assert job_label(["text='two\nlines'"], {"text"}) == "text='two lines'"


def test_what_configs_have_in_common():
    assert common_part([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1}]) == {"a": 1}
    assert common_part([]) == {}


def test_flatten_leaves_out_what_is_ignored():
    config = {"a": {"b": 1, "c": {}}, "d": [{"e": 2}], "name": "x", "f": {"name": "y"}}
    assert flatten(config, ["name"]) == {"a.b": 1, "a.c": {}, "d": [{"e": 2}], "f.name": "y"}


def test_references_to_variables_stay_as_they_were_written():
    written = {"a": "${oc.env:A}", "b": ["x", "${oc.env:B}"], "c": "${a}", "d": 1}
    resolved = {"a": "hush", "b": ["x", "hush"], "c": "plain", "d": 1}
    assert comparable_leaves(resolved, written, ()) == {**written, "c": "plain"}


def test_the_hash_sees_values_and_not_their_order():
    assert config_hash({"a": 1, "b": 2}) == config_hash({"b": 2, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    assert config_hash({"a": 1}) != config_hash({"a": "1"})
    assert len(config_hash({})) == 16
