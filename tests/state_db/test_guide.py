"""The examples of docs/state.md, run against a server."""

from __future__ import annotations

import doctest
from pathlib import Path

from tests.support.server_process import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "state.md"


def test_the_examples_of_the_guide_do_what_they_show(server: ServerProcess, tmp_path: Path) -> None:
    text = PAGE.read_text().replace("http://127.0.0.1:4437", server.url)
    text = text.replace("/var/lib/chat", str(tmp_path)).replace("```", "")
    test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(
        test, out=said.append
    )
    assert not result.failed, "".join(said)
    assert result.attempted > 20
