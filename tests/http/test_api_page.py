"""docs/api.md and docs/errors.md cover the OpenAPI document, and the commands work as shown."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from streamd.http.router import describe
from streamd.protocol.headers import HEADERS, Header, Json
from streamd.protocol.problems import Problem
from tests.support.server_process import ServerProcess
from tests.support.tools import CURL, needs

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text()
ERRORS_PAGE = (DOCS / "errors.md").read_text()
DEFAULT_URL = "http://127.0.0.1:4437"
# Parts that the page elides.
ELISION = "..."
PATIENCE_S = 20


class Shown(NamedTuple):
    """A command of the page, and lines that its output has, in this order, among others."""

    command: str
    lines: list[str]


def shown() -> Iterator[Shown]:
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL):
        for part in block.split("$ ")[1:]:
            command, *lines = part.splitlines()
            yield Shown(command, lines)


def as_pattern(lines: list[str]) -> str:
    """A pattern of the output: each line as it is, except for elided parts."""
    escaped = [".*".join(map(re.escape, line.split(ELISION))) for line in lines]
    return ".*".join(f"(?m:^{line}$)" for line in escaped)


@needs(CURL, shutil.which("curl") is not None)
def test_the_commands_of_the_page_do_what_it_shows(tmp_path: Path) -> None:
    commands = list(shown())
    assert len(commands) > 15
    with ServerProcess(tmp_path / "data") as server:
        for command, lines in commands:
            ran = subprocess.run(
                command.replace("curl ", "curl -sS ").replace(DEFAULT_URL, server.url),
                shell=True,
                cwd=tmp_path,
                capture_output=True,
                timeout=PATIENCE_S,
                check=True,
            )
            output = ran.stdout.decode().replace("\r\n", "\n")
            assert re.search(as_pattern(lines), output, re.DOTALL), (command, output)
            if not lines:
                assert "error" not in output, (command, output)


def test_the_page_has_every_path_and_method() -> None:
    rows = [row.split("|")[1:3] for row in PAGE.splitlines() if row.startswith("| `/")]
    told = {
        path: {*methods.strip().split(", "), "OPTIONS"}
        for paths, methods in rows
        for path in re.findall(r"`(.*?)`", paths)
    }
    documented = {
        path: {key.upper() for key in item if key != "parameters"}
        for path, item in describe()["paths"].items()
    }
    assert told == documented


def test_the_page_of_errors_matches_the_table_of_problems() -> None:
    rows = [line for line in ERRORS_PAGE.splitlines() if line.startswith("| <a")]
    assert rows == [
        f'| <a id="{problem.name}"></a>`{problem.code}` | {problem.status} | {problem.meaning} | '
        f"{problem.cure} | {', '.join(f'`{name}`' for name in problem.headers)} |"
        for problem in Problem
    ]


def test_the_page_has_every_header_and_parameter() -> None:
    components = describe()["components"]
    names = {one["name"] for one in components["parameters"].values() if one["in"] != "path"}
    names |= {name.removesuffix(".optional") for name in components["headers"]}
    missing = {name for name in names if re.search(rf"`{re.escape(name)}[`:=]", PAGE) is None}
    assert missing == set()


def row(header: Header, document: Json) -> str:
    """A header's line in the page's table."""
    sent = [
        method.upper()
        for item in document["paths"].values()
        for method, operation in item.items()
        if method != "parameters"
        for parameter in operation.get("parameters", [])
        if parameter["$ref"].endswith(f"/{header}")
    ]
    asked = answered = ""
    if header.request is not None:
        asked = f"{', '.join(sorted(set(sent))) or 'any body'}: {header.request.meaning}"
    if header.response is not None:
        answered = header.response.meaning
    return f"| `{header}` | {asked} | {answered} | {header.source} |"


def test_the_table_of_headers_matches_the_code() -> None:
    told = PAGE.partition("## Headers\n")[2].partition("\n## ")[0]
    document = describe()
    expected = [row(header, document) for header in HEADERS]
    assert [line for line in told.splitlines() if line.startswith("| `")] == expected
