"""Source trees of earlier commits, so that tests can run them beside this one.

They run on the packages of this interpreter. Where the history is not there, as in a shallow clone
or an unpacked archive, a test that needs it is skipped.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import streamd
from streamd.group.log_formats import LOG_FORMAT
from tests.support.tools import HISTORY, skip_without

_ROOT = Path(__file__).parents[2]


def last_release() -> str:
    """The commit of the newest release that the changelog dates, but for this one: its tag, or else
    the commit that dated it."""
    changelog = (_ROOT / "CHANGELOG.md").read_text()
    headings = re.finditer(r"^## \[(\d\S*)\] - \S+$", changelog, re.MULTILINE)
    heading = next(each for each in headings if each[1] != streamd.__version__)
    tag = f"v{heading[1]}"
    if _git("tag", "--list", tag):
        return tag
    return _first_with(heading[0], "CHANGELOG.md")


def before_the_log_format() -> str:
    """The last commit before the log got its present format."""
    return _first_with(f"_FORMAT = {LOG_FORMAT}\n", "src/streamd") + "^"


def unpack(commit: str, directory: Path) -> Path:
    """Write the sources of a commit below a directory; returns what to put on the path."""
    content = _run("archive", commit, "src")
    with tarfile.open(fileobj=BytesIO(content)) as archive:
        archive.extractall(directory, filter="data")
    return directory / "src"


def _first_with(text: str, path: str) -> str:
    """The first commit with a text in a file, or in one below a directory."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        skip_without(HISTORY, "this clone is shallow")
    commits = _git("log", "--format=%H", f"-S{text}", "--", path).split()
    if not commits:
        skip_without(HISTORY, f"no commit brought {text.strip()!r} to {path}")
    return commits[-1]


def _git(*arguments: str) -> str:
    return _run(*arguments).decode().strip()


def _run(*arguments: str) -> bytes:
    if not (_ROOT / ".git").exists():
        skip_without(HISTORY)
    try:
        return subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], check=True, capture_output=True
        ).stdout
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        skip_without(HISTORY, str(error))
