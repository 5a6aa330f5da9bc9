"""What a server sends of the console, to whom, and under which policy."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from streamd.http.console.files import STATIC
from tests.http.authorized import ROOT
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
WITH_ROOT = {"Authorization": f"Bearer {ROOT}"}
MAX_WEIGHT = 300 * 1024
SERVED = sorted(path.name for path in STATIC.iterdir() if path.suffix in (".js", ".css", ".svg"))
DIRECTIVES = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
    "connect-src": "'self'",
}


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    environment = {"STREAMD_AUTH_MODE": "required", "STREAMD_ROOT_TOKEN": ROOT}
    with ServerProcess(tmp_path_factory.mktemp("node") / "d", environment=environment) as server:
        yield server.url


def policy(answer: httpx.Response) -> dict[str, str]:
    parts = answer.headers["content-security-policy"].split("; ")
    return {name: value for name, _, value in (part.partition(" ") for part in parts)}


@pytest.mark.parametrize(("path", "location"), [("/", "console"), ("/console/", "../console")])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_browser_is_led_to_the_console(url: str, method: str, path: str, location: str) -> None:
    answer = httpx.request(method, url + path, headers=BROWSER)
    assert (answer.status_code, answer.headers["location"]) == (303, location)
    assert answer.headers["vary"] == "Accept"
    assert answer.headers["cache-control"] == "no-store"


def test_other_clients_get_the_list_of_buckets(url: str) -> None:
    for accept in ("*/*", "application/json"):
        answer = httpx.get(f"{url}/", headers={**WITH_ROOT, "Accept": accept})
        assert answer.json()["buckets"] == []
    assert httpx.put(f"{url}/", headers={**WITH_ROOT, **BROWSER}).status_code == 405


@pytest.mark.parametrize("path", ["/console", *(f"/console/{name}" for name in SERVED)])
def test_its_files_are_open_and_have_a_strict_policy(url: str, path: str) -> None:
    answer = httpx.get(url + path)
    assert answer.status_code == 200
    assert policy(answer) == DIRECTIVES
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = httpx.get(url + path, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_has_no_inline_script_or_style_and_names_no_other_host() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|style=|\bon\w+=", page)
    for path in STATIC.iterdir():
        if path.name not in ("uplot.js", "preact-htm.js", "VENDORED.md", "icon.svg"):
            assert not re.search(r"https?://", path.read_text()), path.name


def test_other_files_do_not_exist_and_are_no_pages(url: str) -> None:
    for name in ("none.js", "__init__.py", "VENDORED.md", "uplot.d.ts", "..%2Ffiles.py"):
        answer = httpx.get(f"{url}/console/{name}")
        assert answer.status_code == 404, name
        assert answer.headers["content-security-policy"] == "sandbox"
        assert "access-control-allow-origin" not in answer.headers


def test_the_session_says_who_asks(url: str) -> None:
    assert httpx.get(f"{url}/console/session").status_code == 401
    body = {"name": "reader", "scopes": ["read:agents/*", "list:agents/", "operate:metrics"]}
    made = httpx.post(f"{url}/auth/tokens", headers=WITH_ROOT, json=body)
    token = {"Authorization": f"Bearer {made.json()['token']}"}
    found = httpx.get(f"{url}/console/session", headers=token).json()
    assert (found["name"], found["scopes"]) == ("reader", sorted(body["scopes"]))
    assert found["streams_url"] is None
    root = httpx.get(f"{url}/console/session", headers=WITH_ROOT).json()
    assert {"admin:*", "read:*", "operate:*"} < set(root["scopes"])


def test_all_of_it_is_light(url: str) -> None:
    names = ["index.html", *SERVED]
    weight = sum(len(gzip.compress((STATIC / name).read_bytes())) for name in names)
    assert weight <= MAX_WEIGHT
    compressed = httpx.get(f"{url}/console/main.js", headers={"Accept-Encoding": "gzip"})
    assert compressed.headers["content-encoding"] == "gzip"


def test_libraries_of_others_are_what_they_were() -> None:
    rows = re.findall(
        r"\| `(\S+)` \| .* \| `([0-9a-f]{64})` \|", (STATIC / "VENDORED.md").read_text()
    )
    assert len(rows) == 3
    for name, digest in rows:
        assert sha256((STATIC / name).read_bytes()).hexdigest() == digest


def test_without_a_console_browsers_are_clients(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "d", environment={"STREAMD_SERVER_CONSOLE": "false"}) as server:
        assert httpx.get(f"{server.url}/", headers=BROWSER).json()["buckets"] == []
        for path in ("/console", "/console/main.js", "/console/session"):
            answer = httpx.get(server.url + path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")


def test_with_a_listener_for_operators_the_console_is_there(tmp_path: Path) -> None:
    admin = f"127.0.0.1:{unused_port()}"
    with ServerProcess(tmp_path / "d", environment={"STREAMD_ADMIN_LISTEN": admin}) as server:
        assert httpx.get(f"{server.url}/", headers=BROWSER).status_code == 200
        assert httpx.get(f"{server.url}/console").status_code == 404
        assert httpx.get(f"http://{admin}/", headers=BROWSER).headers["location"] == "console"
        page = httpx.get(f"http://{admin}/console")
        assert policy(page) == {**DIRECTIVES, "connect-src": f"'self' {server.url}"}
        session = httpx.get(f"http://{admin}/console/session").json()
        assert session["streams_url"] == server.url
