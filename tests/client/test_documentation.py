"""The examples of docs/python.md, run against a server."""

from __future__ import annotations

import doctest
from pathlib import Path

from tests.support.server_process import ServerProcess

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
OPTIONS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL


def test_the_examples_for_python_do_what_they_show(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        text = PAGE.read_text().replace("http://127.0.0.1:4437", server.url).replace("```", "")
        test = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
        said: list[str] = []
        result = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=said.append)
    assert not result.failed, "".join(said)
    assert result.attempted > 10
