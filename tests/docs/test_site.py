"""The documentation as a site: `make docs` builds it, and it needs no other host."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from streamd.protocol.problems import Problem
from tests.docs.pages import ROOT
from tests.examples.browsing import chromium
from tests.support.tools import GIT, needs

pytestmark = pytest.mark.long

PROGRAMS = Path(sys.executable).parent
QUIET = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
# What a page loads when it is opened. Links that a reader follows may lead anywhere.
LOADED = re.compile(
    r"<(?:script|img|iframe|link(?=[^>]*stylesheet|[^>]*icon))\b[^>]*?(?:src|href)=\"?([^\s\">]+)"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` builds it, but elsewhere. A link that leads nowhere would fail it."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict"]
    done = subprocess.run(
        [*command, "--site-dir", str(directory)],
        cwd=ROOT,
        env=QUIET,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return directory


def test_a_page_loads_only_what_the_site_has(site: Path) -> None:
    loaded = 0
    for page in site.rglob("*.html"):
        base = site if page.name == "404.html" else page.parent
        for target in LOADED.findall(page.read_text()):
            if not target.startswith("data:"):
                path = target.partition("?")[0].lstrip("/" if base == site else "")
                assert (base / path).is_file(), f"{page.relative_to(site)} loads {target}"
                loaded += 1
    assert loaded > 500


def test_the_search_finds_each_page_of_docs_without_a_server(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text().partition("=")[2]
    found = {entry["location"].partition("#")[0] for entry in json.loads(index)["docs"]}
    written = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    assert {page.removesuffix(".md") + ".html" for page in written} <= found


def test_each_error_has_an_address_of_its_own(site: Path) -> None:
    anchors = set(re.findall(r'\bid="?([A-Z][A-Z0-9_]+)\b', (site / "errors.html").read_text()))
    assert anchors == {problem.name for problem in Problem}


def test_files_outside_of_docs_are_there_if_a_page_links_to_them(site: Path) -> None:
    text = (site / "repository" / "config" / "streamd.toml.txt").read_text()
    assert text == (ROOT / "config" / "streamd.toml").read_text()
    decisions = (site / "repository" / "docs" / "decisions.html").read_text()
    assert "decisions/001-host-is-checked-for-administration-only.html" in decisions


def test_the_search_is_answered_in_a_browser_that_opens_the_files(site: Path) -> None:
    with chromium() as page:
        page.open(site.joinpath("index.html").as_uri())
        page.type("input.md-search__input", "fsync")
        page.until("document.querySelector('.md-search-result__link') !== null")
        found = page.evaluate("document.querySelector('.md-search-result__link').href")
        page.open(found)
        page.until("document.querySelector('article mark') !== null")


@needs(GIT, shutil.which("git") is not None)
def test_a_reader_is_led_from_one_version_to_the_other_by_the_menu(tmp_path: Path) -> None:
    """As CONTRIBUTING.md says, but in a repository of its own."""
    repository, pages = tmp_path / "repository", tmp_path / "pages"
    author = {"GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.net"}
    committer = {"GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.net"}
    path = f"{PROGRAMS}:{os.environ['PATH']}"

    def run(*command: str) -> None:
        done = subprocess.run(
            command,
            cwd=repository,
            env={**QUIET, **author, **committer, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert done.returncode == 0, done.stdout

    repository.mkdir()
    pages.mkdir()
    run("git", "init", "--quiet")
    run("git", "commit", "--quiet", "--allow-empty", "--message", "Begin")
    file = f"--config-file={ROOT / 'mkdocs.yml'}"
    run("mike", "deploy", file, "0.1")
    run("mike", "deploy", file, "--update-aliases", "0.2", "latest")
    run("mike", "set-default", file, "latest")
    run("git", f"--work-tree={pages}", "checkout", "gh-pages", "--", ".")
    handler = partial(Silent, directory=str(pages))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, chromium() as page:
        threading.Thread(target=server.serve_forever).start()
        try:
            page.open(f"http://127.0.0.1:{server.server_port}/")
            page.until("location.pathname.startsWith('/latest/')")
            page.wait(".md-version__link", ["0.2", "0.1"])
            page.click(".md-version__item:last-child a")
            page.until("location.pathname.startsWith('/0.1/')")
            page.until("document.querySelector('.md-version__current')?.innerText.trim() === '0.1'")
        finally:
            server.shutdown()


class Silent(SimpleHTTPRequestHandler):
    """Serves files, and prints nothing."""

    def log_message(self, *_: object) -> None: ...
