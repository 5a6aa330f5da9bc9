"""The table of examples/table: the application and a page in Chromium show the same rows."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from streamd.client import Client
from tests.examples.applications import Application
from tests.examples.browsing import chromium
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

TABLE = "examples.table.app:app"


def change(operation: str, flight: str, to: str, status: str) -> str:
    value = {"to": to, "status": status}
    headers = {"operation": operation}
    return json.dumps({"type": "departure", "key": flight, "value": value, "headers": headers})


def test_a_page_and_the_application_show_the_rows_of_all_writers(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        Client(server.url) as client,
        Application(
            TABLE, {"STREAMD_URL": server.url, "BOARD_FILE": str(tmp_path / "board.db")}
        ) as table,
        chromium() as page,
    ):

        def put(flight: str, **row: object) -> int:
            return httpx.put(f"{table.url}/departures/{flight}", json=row).status_code

        page.open(table.url)
        assert put("LX318", to="Zurich", status="on time") == 204
        assert put("BA710", to="London", status="boarding") == 204
        page.wait("td", ["BA710", "London", "boarding", "LX318", "Zurich", "on time"])
        assert put("LX318", to="Zurich", status=7) == 400
        assert put("LX318", to="Zurich", status="a" * 10**6) == 413
        assert httpx.put(f"{table.url}/departures/LX318", json=[]).status_code == 400

        board = client.stream("airport/board")
        board.append(change("update", "LX318", "Zurich", "delayed"))
        page.wait("td", ["BA710", "London", "boarding", "LX318", "Zurich", "delayed"])

        # What is not a row changes nothing, for the page as for the application.
        wrong = {"type": "departure", "key": "XX1", "value": ["Nowhere"]}
        board.append_json({**wrong, "headers": {"operation": "insert"}}, {**wrong, "headers": {}})
        board.append_json(None, 5, "text", {}, {"headers": None})
        table.kill()
        board.append(change("insert", "AF1015", "Paris", "on time"))
        page.wait("tr td:first-child", ["AF1015", "BA710", "LX318"])
        table.start()
        assert httpx.get(f"{table.url}/departures").json() == [
            {"flight": "AF1015", "to": "Paris", "status": "on time"},
            {"flight": "BA710", "to": "London", "status": "boarding"},
            {"flight": "LX318", "to": "Zurich", "status": "delayed"},
        ]
        assert httpx.delete(f"{table.url}/departures/BA710").status_code == 204
        page.wait("tr td:first-child", ["AF1015", "LX318"])
        page.reload()
        page.wait("tr td:first-child", ["AF1015", "LX318"])
