"""Yjs documents in streams: `@durable-streams/y-durable-streams`, its provider and its server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.official_clients.test_npm_client import Script, restarted, running
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

STREAMS = "/v1/stream/yjs/editing/docs"


@pytest.fixture(name="editors", scope="module")
def _editors(server: ServerProcess) -> Iterator[Script]:
    with running("edit.mjs", server.url) as editors:
        yield editors


def join(editors: Script, doc: str, *names: str, live: str = "sse") -> None:
    for name in names:
        editors.ask("join", name, doc, live)
        shows(editors, name, synced=True, connected=True)


def shows(editors: Script, name: str, **wanted: object) -> None:
    seen = editors.ask("until", name, wanted)
    assert {key: seen[key] for key in wanted} == wanted


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_editors_of_a_document_join_at_its_snapshots(
    editors: Script, server: ServerProcess, live: str
) -> None:
    """New editors read from one past the snapshot's offset: past the tail, or inside an update."""
    doc = f"snapshots/{live}"
    offset = "-1"
    text = ""
    names = [f"{doc}-0"]
    join(editors, doc, names[0], live=live)
    for letter in "abc":
        editors.ask("insert", names[0], len(text), letter * 1500)
        text += letter * 1500
        before, offset = offset, editors.ask("snapshot", doc, offset)
        for more in ("", letter.upper()):
            if more:
                editors.ask("insert", names[0], len(text), more)
                text += more
            names.append(f"{doc}-{len(names)}")
            join(editors, doc, names[-1], live=live)
            assert editors.ask("agree", *names) == [text]
        if before != "-1":
            # Only the last snapshot is kept.
            kept = f"{server.url}{STREAMS}/{doc}/.snapshots"
            assert httpx.head(f"{kept}/{before}").status_code == 404
            assert httpx.head(f"{kept}/{offset}").status_code == 200


@pytest.mark.parametrize("seed", range(2))
def test_documents_that_several_edit_at_once_become_the_same(editors: Script, seed: int) -> None:
    random = Random(seed)
    docs = [f"random/{seed}-{number}" for number in range(2)]
    names = {doc: [f"{doc}-{number}" for number in range(3)] for doc in docs}
    for doc in docs:
        join(editors, doc, *names[doc])
    for number in range(100):
        name = random.choice(names[random.choice(docs)])
        if random.random() < 0.7:
            editors.ask("insertAt", name, random.random(), f"{number} ü🙂"[: random.randint(1, 6)])
        else:
            editors.ask("remove", name, random.random())
    texts = [editors.ask("agree", *names[doc]) for doc in docs]
    assert [len(found) for found in texts] == [1, 1]
    assert texts[0] != texts[1]


def test_editors_see_who_is_present(editors: Script) -> None:
    join(editors, "presence", "Ann", "Bob")
    editors.ask("show", "Ann", {"name": "Ann", "cursor": 3})
    editors.ask("show", "Bob", {"name": "Bob"})
    for name in ("Ann", "Bob"):
        shows(editors, name, present="Ann Bob")
    editors.ask("show", "Bob", {"name": "Robert"})
    shows(editors, "Ann", present="Ann Robert")
    editors.ask("disconnect", "Bob")
    shows(editors, "Ann", present="Ann")


@pytest.mark.parametrize(
    ("live", "ended_by"), [("sse", "stop"), ("long-poll", "stop"), ("long-poll", "kill")]
)
def test_editors_outlive_a_restart(
    editors: Script, server: ServerProcess, live: str, ended_by: str
) -> None:
    doc = f"restarted/{live}-{ended_by}"
    names = (f"{doc}-here", f"{doc}-there")
    join(editors, doc, *names, live=live)
    editors.ask("insert", names[0], 0, "before")
    assert editors.ask("agree", *names) == ["before"]
    restarted(server, getattr(server, ended_by))
    editors.ask("insert", names[1], 6, " and after")
    assert editors.ask("agree", *names) == ["before and after"]


def test_editors_outlive_a_killed_server(editors: Script, server: ServerProcess) -> None:
    """The package's server leaves the events of its editors hanging then: they connect again."""
    names = ("here", "there")
    join(editors, "killed", *names)
    editors.ask("insert", "here", 0, "before")
    assert editors.ask("agree", *names) == ["before"]
    restarted(server, server.kill)
    for name in names:
        editors.ask("disconnect", name)
        editors.ask("connect", name)
        shows(editors, name, synced=True, connected=True)
    editors.ask("insert", "there", 6, " and after")
    assert editors.ask("agree", *names) == ["before and after"]


def test_edits_while_the_server_is_away_are_merged(editors: Script, server: ServerProcess) -> None:
    """The provider drops what its server refuses; the document still has it."""
    names = ("one", "two")
    join(editors, "away", *names)
    editors.ask("insert", "one", 0, "shared ")
    assert editors.ask("agree", *names) == ["shared "]

    def end() -> None:
        server.kill()
        editors.ask("insert", "one", 0, "[one]")
        editors.ask("insert", "two", 7, "[two]")

    restarted(server, end)
    join(editors, "away", "back")
    for name in names:
        editors.ask("merge", "back", name)
    shows(editors, "back", text="[one]shared [two]", synced=True)
    join(editors, "away", "reader")
    assert editors.ask("agree", "back", "reader") == ["[one]shared [two]"]


def test_what_was_written_offline_is_merged(editors: Script) -> None:
    """The provider sends what is written while it is connected; the application has the rest."""
    names = ("left", "stayed")
    join(editors, "offline", *names)
    editors.ask("insert", "left", 0, "shared")
    assert editors.ask("agree", *names) == ["shared"]
    editors.ask("disconnect", "left")
    editors.ask("insert", "left", 6, " by left")
    editors.ask("insert", "stayed", 0, "stayed ")
    join(editors, "offline", "back")
    editors.ask("merge", "back", "left")
    assert editors.ask("agree", "back", "stayed") == ["stayed shared by left"]
    editors.ask("connect", "left")
    assert editors.ask("agree", *names, "back") == ["stayed shared by left"]


def test_a_document_outlives_its_editors_and_their_server(
    server: ServerProcess, editors: Script, tmp_path: Path
) -> None:
    join(editors, "kept", "first")
    editors.ask("insert", "first", 0, "kept")
    join(editors, "kept", "second")
    assert editors.ask("agree", "first", "second") == ["kept"]
    with running("edit.mjs", server.url) as others:
        join(others, "kept", "third")
        shows(others, "third", text="kept")
