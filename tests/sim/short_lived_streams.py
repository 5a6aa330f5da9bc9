"""Streams that live for seconds, on machines whose clocks are wrong.

Nobody can say which of them should still exist; the watch checks that all nodes agree, at every
entry of the log and at the end.
"""

from __future__ import annotations

from random import Random

import trio

from tests.sim.clients import TEXT, Unavailable, Unknown, Workload


class ShortLivedStreams:
    """One client that makes such streams, forks of them, appends to them and reads them."""

    def __init__(self, workload: Workload, random: Random) -> None:
        self._workload = workload
        self._random = random
        self._made = 0

    async def run(self) -> None:
        while self._workload.running:
            await trio.sleep(self._random.expovariate(1.0))
            try:
                await self._do_something()
            except (Unavailable, Unknown):
                continue

    async def _do_something(self) -> None:
        path = b"/v1/stream/mayfly/%d" % self._random.randint(max(0, self._made - 3), self._made)
        text = {b"content-type": TEXT}
        counted = self._workload.counted
        match self._random.choice(("make", "fork", "append", "read")):
            case "make":
                self._made += 1
                lives = {b"stream-ttl": b"%d" % self._random.choice((1, 5, 60, 4000))}
                answer = await self._send("PUT", path, text | lives, b"born")
                counted["short-lived streams"] += answer == 201
            case "fork":
                self._made += 1
                fork = b"/v1/stream/mayfly/%d" % self._made
                answer = await self._send("PUT", fork, {b"stream-forked-from": path})
                counted["forks of short-lived streams"] += answer == 201
            case "append":
                answer = await self._send("POST", path, text, b"more")
                counted["appends to short-lived streams"] += answer == 204
            case "read":
                answer = await self._send("GET", path, {})
                counted["short-lived streams gone"] += answer == 404

    async def _send(
        self, method: str, path: bytes, headers: dict[bytes, bytes], body: bytes = b""
    ) -> int:
        host = self._workload.any_host()
        answer = await self._workload.send(host, method, path, 5.0, headers=headers, body=body)
        return answer.status
