import json
import os
import platform
import sys

from benchmarks.provenance import provenance, versions, why_absent, write_json


def test_what_is_written_down():
    found = provenance({"peers": None, "gone": "/no/such/python"})
    assert found["machine"]["usable_cores"] == sorted(os.sched_getaffinity(0))
    assert set(found["versions"]) == {"walle"}
    assert found["versions"]["walle"]["python"] == platform.python_version()
    assert json.dumps(found)


def test_versions_of_an_interpreter():
    assert versions(sys.executable)["torch"]
    assert why_absent(sys.executable, ("torch", "numpy"), "--peers") is None


def test_a_report_is_written_whole_as_often_as_asked(tmp_path):
    path = tmp_path / "found.json"
    report = {"provenance": {}, "rows": [1]}
    write_json(path, report)
    report["rows"].append(2)
    write_json(path, report)
    found = json.loads(path.read_text())
    assert found["rows"] == [1, 2]
    assert set(found["provenance"]) == {"written", "load_after"}
    assert list(tmp_path.iterdir()) == [path]
    write_json(None, report)
