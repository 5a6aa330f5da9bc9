"""The jobs of examples/jobs: both frameworks, and readers in three languages."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from examples.jobs.work import STEPS
from tests.docs.pages import ROOT
from tests.examples.applications import Application
from tests.http.authorized import Authorized, authorized
from tests.support.tools import CURL, cache_directory, needs, node_or_skip

pytestmark = pytest.mark.long

HERE = ROOT / "examples" / "jobs"
PACKAGES = ROOT / "tests" / "official_clients" / "node_modules"
PROGRESS = [f"{step} of {STEPS}" for step in range(1, STEPS + 1)]
GO = "Go"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authorized]:
    with authorized("HTTP/1.1", tmp_path_factory.mktemp("authorized")) as server:
        yield server


@pytest.fixture(scope="module", params=["fastapi_app", "django_app"])
def application(request: pytest.FixtureRequest, server: Authorized) -> Iterator[Application]:
    scopes = [f"{may}:jobs/*" for may in ("create", "append", "close", "read")]
    token = server.token(*scopes)
    own = {"STREAMD_URL": server.urls[0], "STREAMD_TOKEN": token}
    with Application(f"examples.jobs.{request.param}:app", own) as application:
        yield application


def followed(application: Application, *command: str, **environment: str) -> list[str]:
    """What a reader prints of a job that has just begun."""
    begun = httpx.post(f"{application.url}/jobs", timeout=60)
    assert begun.status_code == 202
    url = begun.json()["progress"]
    assert "signed=" in url
    done = subprocess.run(
        [*command, url],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs(CURL, shutil.which("curl") is not None)
def test_curl_follows_a_job_to_its_end(application: Application) -> None:
    assert followed(application, str(HERE / "follow.sh")) == PROGRESS


def test_the_official_client_follows_a_job_to_its_end(
    application: Application, tmp_path: Path
) -> None:
    node_or_skip()
    shutil.copy(HERE / "follow.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    assert followed(application, "node", str(tmp_path / "follow.mjs")) == PROGRESS


@needs(GO, shutil.which("go") is not None)
def test_go_follows_a_job_to_its_end(application: Application) -> None:
    # Go keeps what it has compiled of its library from run to run.
    kept = {"GOCACHE": str(cache_directory() / "go-build"), "GOFLAGS": "", "GO111MODULE": "off"}
    assert followed(application, "go", "run", str(HERE / "follow.go"), **kept) == PROGRESS
