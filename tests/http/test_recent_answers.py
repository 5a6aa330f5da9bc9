"""A read that is answered from memory is never out of date."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from random import Random

import httpx
import pytest

from streamd.http.protocol.fields import ReadQuery, read_query
from streamd.http.protocol.messages import Response
from streamd.http.streams.recent_answers import MAX_ANSWERS, MAX_BODY_BYTES, Key, RecentAnswers
from tests.http.serving import serving

STREAM = "/bucket/s"
BINARY = {"Content-Type": "application/octet-stream"}


def token(record: int, byte: int) -> str:
    return f"{record:016d}_{byte:016d}"


class Model:
    """What the stream holds, and from which record on."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.earliest = 0
        self.closed = False

    def offset(self, record: int) -> str:
        return token(record, sum(map(len, self.records[:record])))


async def change(http: httpx.AsyncClient, model: Model, random: Random) -> Model:
    """Change the stream in some way."""
    chance = random.random()
    if chance < 0.1 or (model.closed and chance < 0.5):
        assert (await http.delete(STREAM)).status_code == 204
        assert (await http.put(STREAM, headers=BINARY)).status_code == 201
        return Model()
    if chance < 0.2:
        assert (await http.post(STREAM, headers={"Stream-Closed": "true"})).is_success
        model.closed = True
    elif chance < 0.4:
        model.earliest = random.randint(model.earliest, len(model.records))
        path = f"{STREAM}/snapshot/{model.offset(model.earliest)}"
        assert (await http.put(path, content=b"x")).is_success
    elif not model.closed:
        record = random.randbytes(random.randint(1, 3 * MAX_BODY_BYTES // 2))
        assert (await http.post(STREAM, headers=BINARY, content=record)).status_code == 204
        model.records.append(record)
    return model


async def check(http: httpx.AsyncClient, model: Model) -> None:
    """Read from everywhere, each twice: the second answer may be that of the first."""
    tail = model.offset(len(model.records))
    for record in range(len(model.records) + 1):
        first = await http.get(STREAM, params={"offset": model.offset(record)})
        again = await http.get(STREAM, params={"offset": model.offset(record)})
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers.get("etag") == first.headers.get("etag")
        if record < model.earliest:
            assert again.status_code == 410
            continue
        assert again.content == b"".join(model.records[record:])
        assert again.headers["stream-next-offset"] == tail
        assert ("stream-closed" in again.headers) == model.closed
        unchanged = {"If-None-Match": again.headers["etag"]}
        same = await http.get(STREAM, params={"offset": model.offset(record)}, headers=unchanged)
        assert same.status_code == 304


async def test_repeated_reads_follow_all_changes_of_the_stream(tmp_path: Path) -> None:
    seed = 11
    print(f"seed {seed}")
    random = Random(seed)
    model = Model()
    async with serving(tmp_path) as server, server.client() as http:
        await http.put("/bucket")
        await http.put(STREAM, headers=BINARY)
        for _ in range(40):
            model = await change(http, model, random)
            await check(http, model)
        assert len(server.service.answers) > 0


async def test_the_age_that_a_cache_may_keep_goes_down_from_read_to_read(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as http:
        ends = datetime.fromtimestamp(server.clock.now_ms() / 1000 + 50, UTC)
        expiring = BINARY | {"Stream-Expires-At": ends.isoformat(timespec="seconds")}
        await http.put("/v1/stream/s", headers=expiring, content=b"x")
        ages = []
        for ahead_ms in (0, 10_000):
            server.clock.ahead_ms += ahead_ms
            caching = (await http.get("/v1/stream/s")).headers["cache-control"]
            ages.append(int(caching.removeprefix("public, max-age=")))
    assert ages[1] <= ages[0] - 10


# Queries that differ from one without parameters in one field.
OTHERWISE = {
    "at": "offset=" + token(1, 3),
    "live": "offset=-1&live=long-poll",
    "cursor": "cursor=7",
    "timeout_ms": "timeout=2",
    "max_bytes": "max_bytes=1",
    "local": "consistency=local",
    "record": "record=1",
    "framed": "framing=lengths",
    "proof": "proof=record",
}


@pytest.mark.parametrize("field", ReadQuery._fields)
async def test_no_read_gets_the_answer_to_another(field: str, tmp_path: Path) -> None:
    query = OTHERWISE[field]
    asked = read_query(query.encode())
    assert asked._replace(**{field: getattr(ReadQuery(), field)}) == ReadQuery() != asked
    async with serving(tmp_path) as server, server.client() as http:

        async def ask(query: str) -> tuple[int, bytes, dict[str, str]]:
            answer = await http.get(f"/v1/stream/s?{query}")
            headers = dict(answer.headers)
            headers.pop("date", None)
            return answer.status_code, answer.content, headers

        await http.put("/v1/stream/s", headers=BINARY, content=b"one")
        await http.post("/v1/stream/s", headers=BINARY, content=b"two")
        own = await ask(query)
        server.service.answers = RecentAnswers()
        plain = await ask("")
        assert len(server.service.answers) == 1
        assert (await ask(query))[:2] == own[:2]
        assert {**(await ask(query))[2], "stream-cursor": ""} == {**own[2], "stream-cursor": ""}
        assert await ask("") == plain


def key(number: int) -> Key:
    return number, 1, 1, False, ReadQuery()


def test_few_and_small_answers_are_kept_and_hold_on_to_nothing_larger() -> None:
    answers = RecentAnswers()
    chunk = bytes(1_000_000)
    for number in range(2 * MAX_ANSWERS):
        answers.keep(key(number), Response(200, b"", [memoryview(chunk)[:10]]))
        assert len(answers) <= MAX_ANSWERS
    last = answers.get(key(2 * MAX_ANSWERS - 1))
    assert last is not None
    assert last.body == bytes(10)
    assert isinstance(last.body, bytes)
    answers.keep(key(-1), Response(200, b"", chunk[: MAX_BODY_BYTES + 1]))
    assert answers.get(key(-1)) is None
