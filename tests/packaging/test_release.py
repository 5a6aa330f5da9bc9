"""A release is built only where all that names its version agrees, from committed files."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.installed import ROOT, run

VERSION = "3.2.1"
SCRIPT = ROOT / "packaging" / "release.py"
FILES = {
    "src/streamd/__init__.py": f'__version__ = "{VERSION}"\n',
    "CHANGELOG.md": f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2026-11-30\n\n- New.\n",
    "man/streamd.1": f'.TH STREAMD 1 "" "streamd {VERSION}"\n',
}


def git(checkout: Path, *words: str) -> None:
    who = ["-c", "user.name=Tests", "-c", "user.email=tests@example.net"]
    subprocess.run(["git", "-C", checkout, *who, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A release that is as it must be."""
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "packaging").mkdir()
    shutil.copy(SCRIPT, tmp_path / "packaging")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(checkout: Path) -> None:
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "All")
    git(checkout, "tag", "--force", f"v{VERSION}")


def complaints(checkout: Path) -> list[str]:
    done = run(sys.executable, checkout / "packaging" / "release.py", "check", cwd=checkout)
    assert done.returncode == bool(done.stdout), done.stderr
    return done.stdout.splitlines()


def test_a_release_where_all_agrees_is_built(checkout: Path) -> None:
    assert complaints(checkout) == []


@pytest.mark.parametrize(
    ("name", "old", "new", "complaint"),
    [
        ("src/streamd/__init__.py", VERSION, "3.2.1.dev0", "3.2.1.dev0 does not name a release"),
        ("CHANGELOG.md", VERSION, "3.2.0", "the newest dated release is 3.2.0, not 3.2.1"),
        ("CHANGELOG.md", "[Unreleased]\n", "[Unreleased]\n\n- More.\n", "is not empty"),
        ("man/streamd.1", VERSION, "0.1.0", "man/streamd.1: names 0.1.0"),
    ],
)
def test_a_file_that_disagrees_is_named(
    checkout: Path, name: str, old: str, new: str, complaint: str
) -> None:
    path = checkout / name
    path.write_text(path.read_text().replace(old, new))
    commit(checkout)
    assert any(complaint in line for line in complaints(checkout))


def test_a_commit_without_its_tag_is_no_release(checkout: Path) -> None:
    git(checkout, "tag", "--delete", f"v{VERSION}")
    assert complaints(checkout) == [f"the commit has no tag v{VERSION}"]


def test_what_is_not_committed_is_no_release(checkout: Path) -> None:
    (checkout / "new").touch()
    assert complaints(checkout) == ["the work tree has changes or files that are not committed"]


def test_two_builds_are_compared_file_by_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "equal").write_text("equal")
        (tmp_path / name / "other").write_text(name)
    (tmp_path / "two" / "more").touch()
    done = run(sys.executable, SCRIPT, "compare", "one", "two", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "more: differs\nother: differs\n")
    sums = tmp_path / "one" / "SHA256SUMS"
    assert [line.split()[1] for line in sums.read_text().splitlines()] == ["equal", "other"]
    shutil.copy(tmp_path / "one" / "other", tmp_path / "two" / "other")
    (tmp_path / "two" / "more").unlink()
    assert run(sys.executable, SCRIPT, "compare", "one", "two", cwd=tmp_path).returncode == 0


def test_this_checkout_names_one_version_everywhere() -> None:
    """What remains to be done for a release is the version without `.dev`, its date and its tag."""
    done = run(sys.executable, SCRIPT, "check", cwd=ROOT)
    assert [line for line in done.stdout.splitlines() if "names" in line] == []
