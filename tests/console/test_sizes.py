"""Streams with very many and very large records, and buckets with very many streams."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio

from streamd.app import App, Environment
from streamd.config.settings import Config
from streamd.group.stores import Stores
from streamd.streams.commands import Create
from streamd.streams.keys import stream_key
from streamd.streams.model import Settings
from tests.console.consoles import Cluster, Console
from tests.examples.browsing import pages
from tests.http.authorized import ROOT
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

MANY_RECORDS = 10_000
FIRST_MS = 1795762800000  # 2026-11-27 07:00 UTC
# A million takes a minute to make; docs/console.md says what their pages cost.
MANY_STREAMS = 100_000
WRITERS = 2_000
LARGE = 16 * 1024 * 1024 - 1
ROWS = "document.querySelectorAll('tbody tr').length"


def test_a_stream_of_many_records_is_read_in_pages(cluster: Cluster, console: Console) -> None:
    with cluster.client() as client:
        stream = client.stream("sizes/many")
        stream.create("application/json")
        stream.append_json(
            *({"number": number, "ts": FIRST_MS + 1000 * number} for number in range(MANY_RECORDS))
        )
    console.go("stream", "sizes", "many")
    console.page.until("document.querySelectorAll('.records > li').length === 100")
    numbers = (
        "[...document.querySelectorAll('.records li li:first-child .json-number')]"
        ".map((each) => each.textContent)"
    )
    assert console.page.evaluate(numbers) == [str(number) for number in range(100)]
    console.page.click("main ::-p-text(Later)")
    console.sees(".records > li:first-child .json-number", "100")
    console.page.click("main ::-p-text(Last)")
    console.sees(".records > li:last-child .json-number", "9999")
    console.page.click("main ::-p-text(Earlier)")
    console.sees(".records > li:last-child .json-number", "9899")
    console.page.enter("[name=place]", "5000")
    console.sees(".records > li:first-child .json-number", "5000")
    console.go("stream", "sizes", "many")
    console.sees(".records > li:first-child time", "2026-11-27 07:00:00Z")
    console.page.enter("[name=place]", "2026-11-27 08:00")
    console.sees(".records > li:first-child .json-number", "3600")
    console.sees(".records > li:first-child time", "2026-11-27 08:00:00Z")


def test_a_large_record_is_shown_in_part_and_then_whole(cluster: Cluster, console: Console) -> None:
    with cluster.client() as client:
        stream = client.stream("sizes/large")
        stream.create("text/plain")
        stream.append(b"a" * (LARGE - 3) + b"end")
        stream.append("after it")
    console.go("stream", "sizes", "large")
    console.sees(".records header", "16 MiB")
    assert (
        console.page.evaluate("document.querySelector('.records pre').textContent.length") == 16384
    )
    console.page.click(".records button")
    console.page.until("document.querySelector('.records pre').textContent.endsWith('end')")
    console.go("stream", "sizes", "large", record="1")
    console.page.wait(".records pre", ["after it"])


async def fill(directory: Path) -> None:
    """Make a data directory with a bucket of many streams, as a node without HTTP."""
    stores = Stores.open(directory, 1)
    app = App(Config(), stores, Environment(random=Random(1)))
    left = iter(range(MANY_STREAMS))

    async def write() -> None:
        for number in left:
            key = stream_key(b"crowd", b"s%07d" % number)
            create = Create(key, Settings("text/plain"), implicit_bucket=True)
            await app.node.group.writes.propose(create)

    async with app.running(), trio.open_nursery() as nursery:
        for _ in range(WRITERS):
            nursery.start_soon(write)
    stores.close()


def test_very_many_streams_are_listed_in_pages(tmp_path: Path) -> None:
    trio.run(fill, tmp_path / "data")
    environment = {"STREAMD_AUTH_MODE": "required", "STREAMD_ROOT_TOKEN": ROOT}
    with (
        ServerProcess(tmp_path / "data", environment=environment) as server,
        pages(1) as (page,),
    ):
        console = Console(page, server.url)
        console.open()
        console.go("buckets")
        console.sees("tbody td", f"{MANY_STREAMS:,}")
        console.page.click("td a")
        console.page.until(f"{ROWS} === 200")
        console.sees("main .hint", "sorts this page only")
        for first in ("s0000200", "s0000400"):
            console.page.click("main ::-p-text(Next page)")
            console.sees("tbody tr:first-child a", first)
        last = f"s{MANY_STREAMS - 1:07}"
        console.page.enter("[name=prefix]", last[:-1])
        console.page.until(f"{ROWS} === 10")
        console.misses("main .hint")
        console.sees("tbody tr:last-child a", last)
        console.go("overview")
        console.sees("h1", "Overview")
        console.page.press("/")
        console.page.type("dialog input", f"crowd/{last}")
        console.sees("dialog a", f"crowd/{last}")
