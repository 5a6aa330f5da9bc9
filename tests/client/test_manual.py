"""The manual page of the client matches its options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from streamd.commands.cli import main
from streamd.process import exits

MANUAL = Path(__file__).parents[2] / "man" / "streamd-client.1"
COMMANDS = (
    "create", "append", "read", "tail", "head", "close", "delete", "fork", "list", "prove",
    "snapshot publish", "snapshot read", "bootstrap",
)  # fmt: skip
# They ask no server.
ALONE = ("completion", "explain")
WITHOUT_JSON = ("delete", "prove", "snapshot publish", "snapshot read")
OF_ALL = {"--url", "--cacert", "--cert", "--token-file", "--retry-for", "--json"}


def command(words: str) -> click.Command:
    found: click.Command = main
    for word in words.split():
        assert isinstance(found, click.Group)
        following = found.get_command(click.Context(found), word)
        assert following is not None
        found = following
    return found


def options(words: str) -> set[str]:
    return {
        name
        for parameter in command(words).params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    }


def sections() -> Iterator[tuple[str, str]]:
    """Name and text of each part that describes a command."""
    text = MANUAL.read_text().replace("\\-", "-")
    described = text.partition(".SH COMMANDS")[2].partition(".SH EXIT STATUS")[0]
    for part in described.split("\n.SS ")[1:]:
        name, _, body = part.partition("\n")
        yield name, body


def test_each_command_has_a_section() -> None:
    assert [name for name, _ in sections()] == [*COMMANDS, *ALONE]
    all_of_them = {
        f"{name} {inner}" if isinstance(found, click.Group) else name
        for name in main.list_commands(click.Context(main))
        if (found := main.get_command(click.Context(main), name)) is not None
        for inner in (found.commands if isinstance(found, click.Group) else [""])
    }
    servers = (
        "serve", "recover", "cluster", "cold", "backup", "restore", "token", "limits", "sign",
        "config", "debug", "doctor", "keys", "log-head", "log-key", "node", "operations",
        "subscription", "verify",
    )  # fmt: skip
    server = {name for name in all_of_them if name.startswith(servers)}
    assert all_of_them - server == {*COMMANDS, *ALONE}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_section_lists_the_options_its_command_has(words: str) -> None:
    told = set()
    for line in dict(sections())[words].splitlines():
        if re.match(r"\.B[RI]? -", line):
            told |= set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", line))
    assert told - OF_ALL == options(words) - OF_ALL


def test_every_command_has_the_common_options() -> None:
    for words in COMMANDS:
        without = {"--json"} if words in WITHOUT_JSON else set()
        assert options(words) >= OF_ALL - without


def test_each_exit_status_is_documented() -> None:
    text = MANUAL.read_text().partition(".SH EXIT STATUS")[2].partition(".SH ENVIRONMENT")[0]
    known = {value for name, value in vars(exits).items() if name.startswith("EXIT_")}
    assert set(map(int, re.findall(r"^\.B (\d)$", text, re.MULTILINE))) == {0, *known}
