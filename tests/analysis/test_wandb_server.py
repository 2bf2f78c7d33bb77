"""A report is published to a server that answers as W&B's does: the real clients talk to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

PROJECT = {"id": "1", "name": "scaling", "entityName": "me", "createdAt": "2026-11-22T10:00:00"}
PROJECT |= {"__typename": "Project"}
VIEWER = {"id": "1", "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}
PAGE = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}


def answer(query: str, variables: dict[str, Any]) -> dict[str, Any]:
    if "viewer {" in query:
        return {"viewer": VIEWER | {"email": "me@example.org"}}
    if "models(" in query:
        node = PROJECT | {"isBenchmark": False, "user": None}
        return {"models": {"edges": [{"node": node, "cursor": "1"}], "pageInfo": PAGE}}
    if "upsertView(" in query:
        view = {"id": "Vmlldzox", "type": "runs", "name": variables["name"], "project": PROJECT}
        view |= {"displayName": variables["displayName"], "spec": variables["spec"]}
        view |= {"description": variables["description"], "updatedAt": "2026-11-22T10:00:00"}
        return {"upsertView": {"view": view, "inserted": True}}
    return {}


class Server(ThreadingHTTPServer):
    """Keeps the variables of every query for a report.

    Attributes:
        saved: variables of the reports that were saved.
    """

    saved: list[dict[str, Any]]


class Answering(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body) if self.path == "/graphql" else {"query": ""}
        if "upsertView(" in asked["query"]:
            self.server.saved.append(asked["variables"])
        data = answer(asked["query"], asked.get("variables") or {})
        reply = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(("127.0.0.1", 0), Answering)
    found.saved = []
    thread = threading.Thread(target=found.serve_forever)
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


@pytest.mark.slow
def test_save_publishes_the_report_and_prints_its_address(
    speedup_sweep: Path, tmp_path: Path, server: Server
) -> None:
    """In a process of its own, because W&B's service lasts as long as the process."""
    pytest.importorskip("wandb_workspaces")
    address = f"http://127.0.0.1:{server.server_port}"
    own = {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "WANDB_ERROR_REPORTING": "false"}
    command = [sys.executable, "-m", "walle.analysis.wandb_report", str(speedup_sweep)]
    command += ["--save", "--entity", "me", "--project", "scaling", "-o", str(tmp_path / "s.json")]
    environment = {**os.environ, **own, "HOME": str(tmp_path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stderr
    (saved,) = server.saved
    assert (saved["entityName"], saved["projectName"]) == ("me", "scaling")
    assert "Saved report to: " in run.stderr
    assert "/me/scaling/reports/" in run.stderr
    spec = json.loads((tmp_path / "s.json").read_text())["spec"]
    assert saved["displayName"] == "speedup"
    assert panels(json.loads(saved["spec"])) == panels(spec)
    assert "Evaluation by wall clock" in panels(spec)


def panels(spec: dict[str, Any]) -> list[str]:
    grids = [block for block in spec["blocks"] if block["type"] == "panel-grid"]
    found = [one for g in grids for one in g["metadata"]["panelBankSectionConfig"]["panels"]]
    return [panel["config"]["chartTitle"] for panel in found]
