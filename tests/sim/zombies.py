"""Workers that claim a subscription, fall asleep, and go on writing after another has taken over.

Each record on their fenced stream says under which generation it was written. In the end no record
of a generation comes after one of a later generation, and none after a seal that was shown.
"""

from __future__ import annotations

import json
from itertools import pairwise
from random import Random

import trio

from tests.sim.clients import Answer, Unavailable, Unknown, Workload
from tests.sim.watch import InvariantBroken

_STREAM = b"/v1/stream/zombies/session"
_WAKES = b"/v1/stream/zombies/wakes"
_SUBSCRIPTION = b"/v1/stream/__ds/subscriptions/zombies"
_JSON = {b"content-type": b"application/json"}
_LEASE_S = 1.0
_WORKERS = 3


class Zombies:
    """The workers, and what they have been told about seals."""

    def __init__(self, workload: Workload, random: Random) -> None:
        self._workload = workload
        self._random = random
        # Generations and the offsets at which they were sealed.
        self._seals: set[tuple[int, str]] = set()

    async def run(self) -> None:
        if await self._is_set_up():
            async with trio.open_nursery() as nursery:
                for number in range(_WORKERS):
                    nursery.start_soon(self._work, f"worker-{number}")

    async def _is_set_up(self) -> bool:
        """Make the stream and its subscription; False if the run ends before."""
        body = json.dumps(
            {
                "type": "pull-wake",
                "streams": ["zombies/session"],
                "wake_stream": "zombies/wakes",
                "lease_ttl_ms": int(_LEASE_S * 1000),
            }
        ).encode()
        steps = (
            (_WAKES, _JSON, b""),
            (_STREAM, {**_JSON, b"write-fence": b"true"}, b""),
            (_SUBSCRIPTION, _JSON, body),
        )
        for path, headers, content in steps:
            while (answer := await self._send("PUT", path, headers, content)) is None or (
                answer.status not in (200, 201)
            ):
                if not self._workload.running:
                    return False
                await trio.sleep(0.2)
        return True

    async def _work(self, name: str) -> None:
        while self._workload.running:
            await trio.sleep(self._random.expovariate(2 / _LEASE_S))
            body = json.dumps({"worker": name}).encode()
            claimed = await self._send("POST", _SUBSCRIPTION + b"/claim", _JSON, body)
            if claimed is not None and claimed.status == 200:
                await self._write(name, json.loads(claimed.body))
            await self._look()

    async def _write(self, name: str, claim: dict[str, object]) -> None:
        """Write under a claim, mostly for longer than it lasts, and in the end say so or not."""
        generation = int(str(claim["generation"]))
        for seq in range(self._random.randint(1, 8)):
            headers = {
                **_JSON,
                b"write-token": str(claim["write_token"]).encode(),
                b"producer-id": b"%d-%b" % (generation, name.encode()),
                b"producer-epoch": b"%d" % generation,
                b"producer-seq": b"%d" % seq,
            }
            answer = await self._send("POST", _STREAM, headers, b"%d" % generation)
            if answer is None:
                return  # Its outcome is unknown, and so is what comes next.
            if answer.status != 200:
                assert answer.code in ("FENCED", "UNAUTHENTICATED"), answer
                self._workload.counted["zombies' writes refused"] += 1
                return
            self._workload.counted["fenced writes"] += 1
            await trio.sleep(self._random.expovariate(3 / _LEASE_S))
        if self._random.random() < 0.5:
            body = json.dumps(
                {"generation": generation, "wake_id": claim["wake_id"], "done": True}
            ).encode()
            headers = {**_JSON, b"authorization": b"Bearer " + str(claim["token"]).encode()}
            await self._send("POST", _SUBSCRIPTION + b"/ack", headers, body)

    async def _look(self) -> None:
        """Remember the seal that a node shows."""
        answer = await self._send("HEAD", _STREAM, {})
        if answer is not None and b"write-fence-sealed-generation" in answer.headers:
            generation = int(answer.headers[b"write-fence-sealed-generation"])
            self._seals.add((generation, answer.headers[b"write-fence-sealed-offset"].decode()))
            self._workload.counted["seals seen"] += 1

    async def _send(
        self, method: str, path: bytes, headers: dict[bytes, bytes], body: bytes = b""
    ) -> Answer | None:
        """None if the outcome is unknown, or there was none."""
        try:
            return await self._workload.send(
                self._workload.any_host(), method, path, 5.0, headers=headers, body=body
            )
        except (Unavailable, Unknown):
            return None

    async def judge(self) -> None:
        """Raises `InvariantBroken` if a zombie has written."""
        answer = await self._send("GET", _STREAM, {})
        if answer is None or answer.status != 200:
            return
        generations: list[int] = json.loads(answer.body)
        for before, after in pairwise(generations):
            if after < before:
                raise InvariantBroken(
                    f"a record of generation {after} follows one of {before}: {generations}"
                )
        for generation, offset in self._seals:
            place = int(offset.partition("_")[0])
            late = [one for one in generations[place:] if one <= generation]
            if late:
                raise InvariantBroken(
                    f"generation {generation} was sealed at {offset}, and wrote {late} after that"
                )
