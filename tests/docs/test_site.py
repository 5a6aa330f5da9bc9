"""The documentation as a site: `make docs` builds it, and it needs no other host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamd.protocol.problems import Problem
from tests.docs.pages import ROOT

pytestmark = pytest.mark.long

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
