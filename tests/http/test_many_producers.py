"""A stream that remembers as many producers as it may."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamd.streams import producers
from tests.http.serving import serving

STREAM = "/agents/many"
TEXT = {"Content-Type": "text/plain"}


async def test_a_new_producer_is_refused_and_a_known_one_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 3)
    async with serving(tmp_path) as served, served.client() as client:
        assert (await client.put("/agents")).status_code == 201
        assert (await client.put(STREAM, headers=TEXT)).status_code == 201

        async def write(name: str, seq: int, path: str = STREAM, body: bytes = b"x") -> int:
            stamp = {"Producer-Id": name, "Producer-Epoch": "0", "Producer-Seq": str(seq)}
            answer = await client.post(path, headers={**TEXT, **stamp}, content=body)
            if answer.status_code == 507:
                error = json.loads(answer.content)["error"]
                assert error["code"] == "TOO_MANY_PRODUCERS"
                assert "append with a Producer-Id that it knows" in error["message"]
            return answer.status_code

        for name in "abc":
            assert await write(name, 0) == 200
        assert await write("d", 0) == 507
        assert await write("d", 0, f"{STREAM}/append-batch", b"\0\0\0\1x") == 507
        assert await write("a", 0) == 204
        assert await write("a", 1) == 200
        assert (await client.get(STREAM)).content == b"xxxx"
