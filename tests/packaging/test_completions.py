"""The completions in the packages are what `streamd completion` prints."""

from __future__ import annotations

import pytest

from tests.packaging.installed import ROOT
from tests.support import prefork

FILES = {"bash": "streamd", "zsh": "_streamd", "fish": "streamd.fish"}


@pytest.mark.parametrize("shell", FILES)
def test_a_packaged_completion_is_the_printed_one(shell: str) -> None:
    printed = prefork.run_text("completion", shell).stdout
    assert (ROOT / "packaging" / "completions" / FILES[shell]).read_text() == printed
