"""Helm for tests: found on the PATH, or built from its official source, once a machine.

Run as a program it prepares it ahead of the tests, because building takes some minutes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support.go_programs import GoProgram, NotBuilt
from tests.support.tools import HELM, skip_without

_PROGRAM = GoProgram("helm", "helm.sh/helm/v3/cmd/helm", "v3.19.0")


def helm_or_skip() -> Path:
    """The executable; without one the test is skipped."""
    try:
        return _PROGRAM.find()
    except NotBuilt as reason:
        skip_without(HELM, str(reason))


def main() -> None:
    """Prepare Helm, or say why there is none."""
    try:
        _PROGRAM.find(build=False)
        return
    except NotBuilt:
        print("building helm for the tests, once; this takes some minutes", flush=True)
    try:
        _PROGRAM.find()
    except NotBuilt as reason:
        print(f"THE TESTS OF THE CHART WILL BE SKIPPED: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
