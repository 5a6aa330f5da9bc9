"""What `make release` checks: that everything that names a version names the same one, and is
committed; and that two builds are equal.

    python packaging/release.py check
    python packaging/release.py compare DIRECTORY OTHER   # writes DIRECTORY/SHA256SUMS
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SUMS = "SHA256SUMS"
_NAMED_IN = {
    "man/*.1": r'^\.TH .*"streamd (\S+)"',
}


def disagreements(root: Path) -> Iterator[str]:
    """What keeps a checkout from being a release, a sentence each."""
    source = (root / "src/streamd/__init__.py").read_text()
    version = _only(r'^__version__ = "(.+)"$', source)
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        yield f"src/streamd/__init__.py: {version} does not name a release"
    version = version.partition(".dev")[0]
    heading = re.search(r"^## \[(\d\S*)\] - \d{4}-\d\d-\d\d$", _changelog(root), re.MULTILINE)
    if heading is None or heading[1] != version:
        newest = "none" if heading is None else heading[1]
        yield f"CHANGELOG.md: the newest dated release is {newest}, not {version}"
    unreleased = re.search(r"(?ms)^## \[Unreleased\]\n(.*?)(?=^## )", _changelog(root))
    if unreleased is not None and unreleased[1].strip():
        yield "CHANGELOG.md: [Unreleased] is not empty"
    for pattern, expression in _NAMED_IN.items():
        for path in sorted(root.glob(pattern)):
            for named in re.findall(expression, path.read_text(), re.MULTILINE):
                if named != version:
                    yield f"{path.relative_to(root)}: names {named}, not {version}"
    if f"v{version}" not in _git(root, "tag", "--points-at", "HEAD").split():
        yield f"the commit has no tag v{version}"
    if _git(root, "status", "--porcelain"):
        yield "the work tree has changes or files that are not committed"


def differences(directory: Path, other: Path) -> list[str]:
    """Names of the files that only one of two builds has, or that differ."""
    first, second = hashes(directory), hashes(other)
    return sorted(name for name in first | second if first.get(name) != second.get(name))


def hashes(directory: Path) -> dict[str, str]:
    """The SHA-256 of each file of a build, in hexadecimal digits."""
    files = sorted(path for path in directory.iterdir() if path.name != _SUMS)
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in files}


def _changelog(root: Path) -> str:
    return (root / "CHANGELOG.md").read_text()


def _only(expression: str, text: str) -> str:
    (found,) = re.findall(expression, text, re.MULTILINE)
    return str(found)


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print what is wrong, and end with status 1 if something is."""
    match sys.argv[1:]:
        case ["check"]:
            wrong = list(disagreements(ROOT))
        case ["compare", directory, other]:
            wrong = [f"{name}: differs" for name in differences(Path(directory), Path(other))]
            lines = [f"{digest}  {name}\n" for name, digest in hashes(Path(directory)).items()]
            (Path(directory) / _SUMS).write_text("".join(lines))
        case _:
            wrong = [str(__doc__)]
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
