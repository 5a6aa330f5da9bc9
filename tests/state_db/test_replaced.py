"""Databases whose stream is deleted and created again while they follow it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from streamd.client import AsyncClient, AsyncStream, StreamInfo, StreamNotFound
from streamd.state.db import Overtaken
from tests.state.events import change
from tests.state_db.chat import Chat, Stream, User, names, run

ANN, BOB = change("insert", "1", {"name": "Ann"}), change("insert", "2", {"name": "Bob"})


class TestAnotherStreamOfTheName:
    """The stream is deleted and created again while databases follow it."""

    @pytest.mark.parametrize("events", [1, 6])
    def test_a_database_starts_over(self, stream: Stream, backend: str, events: int) -> None:
        """Also where the new stream is longer: then the old offset may be one of its own."""
        stream.append(*[ANN] * 5)

        async def main() -> None:
            async with stream.ready() as db:
                feed = db.users.changes()
                recreate(stream, *[BOB] * events)
                while names(db) != {"2": "Bob"}:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                assert (await anext(feed)).operation == "reset"
                await db.users.insert(User("3", "Cy"))
                assert names(db) == {"2": "Bob", "3": "Cy"}

        run(backend, main)

    def test_a_read_that_begins_in_it_shows_none_of_it(
        self, stream: Stream, backend: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is created after the look at which stream this is, and has the offset to read from."""
        stream.append(ANN)
        head = AsyncStream.head

        async def head_of_the_former(self: AsyncStream) -> StreamInfo:
            monkeypatch.undo()
            info = await head(self)
            recreate(stream, BOB, change("insert", "3", {"name": "Cy"}))
            return info

        async def main() -> None:
            async with AsyncClient(stream.server_url) as client:
                db = Chat(client.stream(stream.name))
                await db.preload()
                assert names(db) == {"1": "Ann"}
                monkeypatch.setattr(AsyncStream, "head", head_of_the_former)
                await db.preload()
                assert names(db) == {"2": "Bob", "3": "Cy"}
                await db.close()

        run(backend, main)

    def test_waits_for_what_was_written_to_it_end(self, stream: Stream, backend: str) -> None:
        stream.append(ANN)
        ended: list[bool] = []

        async def main() -> None:
            async with stream.ready() as db, anyio.create_task_group() as tasks:

                async def wait() -> None:
                    with pytest.raises(Overtaken):
                        await db.wait_for(offset="9")
                    ended.append(True)

                tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                recreate(stream, BOB, BOB)

        run(backend, main)
        assert ended == [True]

    def test_a_stream_that_stays_deleted_ends_the_block(self, stream: Stream, backend: str) -> None:
        async def delete_and_wait() -> None:
            async with stream.ready():
                stream.delete()
                await anyio.sleep_forever()

        async def main() -> None:
            with pytest.raises(StreamNotFound):
                await delete_and_wait()

        run(backend, main)


def recreate(stream: Stream, *events: Any) -> None:
    """Delete the stream, and create it again before its readers can look."""
    stream.delete()
    stream.create()
    stream.append(*events)
