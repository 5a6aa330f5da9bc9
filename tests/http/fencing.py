"""A server with fenced streams, and what its clients do there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from streamd.auth.tokens import mint
from streamd.config.settings import AuthConfig
from streamd.config.subscriptions import SubscriptionsConfig
from tests.http.serving import Clock, Serving, serving

ROOT = mint(1, b"root" * 5)
JSON = {"Content-Type": "application/json"}
SERVICE = {"Authorization": f"Bearer {ROOT}"}
FENCE = {"Write-Fence": "true"}
LEASE_MS = 30_000
GENERATION = "write-fence-sealed-generation"
OFFSET = "write-fence-sealed-offset"


class Claim(NamedTuple):
    """What a worker was given."""

    subscription_id: str
    worker: str
    generation: int
    wake_id: str
    token: str
    write_token: str
    body: dict[str, Any]


class Fenced:
    """A server that requires tokens, with a client that shows the service's where asked to."""

    def __init__(self, server: Serving, client: httpx.AsyncClient) -> None:
        self.server = server
        self.clock: Clock = server.clock
        self._client = client

    async def ask(
        self, method: str, path: str, headers: dict[str, str] | None = None, **body: Any
    ) -> httpx.Response:
        return await self._client.request(
            method, f"/v1/stream/{path}", headers=headers or {}, **body
        )

    async def create(self, path: str, **headers: str) -> httpx.Response:
        sent = {
            **SERVICE,
            **JSON,
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        return await self.ask("PUT", path, sent)

    async def post(
        self, path: str, headers: dict[str, str], body: bytes = b'{"n":1}'
    ) -> httpx.Response:
        return await self.ask("POST", path, {**JSON, **headers}, content=body)

    async def head(self, path: str) -> httpx.Response:
        found = await self.ask("HEAD", path, SERVICE)
        assert found.status_code == 200
        return found

    async def tail(self, path: str) -> str:
        return (await self.head(path)).headers["stream-next-offset"]

    async def sealed(self, path: str) -> tuple[int, str] | None:
        """The generation and the offset of the latest seal."""
        headers = (await self.head(path)).headers
        if GENERATION not in headers:
            assert OFFSET not in headers
            return None
        return int(headers[GENERATION]), headers[OFFSET]

    async def subscribe(self, name: str, *paths: str, lease_ms: int = LEASE_MS) -> None:
        await self.ask("PUT", "wakes", {**SERVICE, **JSON})
        made = await self.ask(
            "PUT",
            f"__ds/subscriptions/{name}",
            SERVICE,
            json={
                "type": "pull-wake",
                "streams": list(paths),
                "wake_stream": "wakes",
                "lease_ttl_ms": lease_ms,
            },
        )
        assert made.status_code == 201, made.text

    async def claim(self, name: str, worker: str = "worker-A") -> Claim:
        claimed = await self.ask(
            "POST", f"__ds/subscriptions/{name}/claim", SERVICE, json={"worker": worker}
        )
        assert claimed.status_code == 200, claimed.text
        body = claimed.json()
        return Claim(
            name,
            worker,
            body["generation"],
            body["wake_id"],
            body["token"],
            body["write_token"],
            body,
        )

    async def claimed(self, name: str, *, lease_ms: int = LEASE_MS) -> tuple[str, Claim]:
        """A fenced stream, and the claim of its only subscription."""
        path = f"fence/{name}"
        assert (await self.create(path, **FENCE)).status_code == 201
        await self.subscribe(name, path, lease_ms=lease_ms)
        return path, await self.claim(name)

    async def ack(self, claim: Claim, **more: Any) -> httpx.Response:
        """Acknowledge: a heartbeat, unless there is `more`."""
        body = {"wake_id": claim.wake_id, "generation": claim.generation, **more}
        bearer = {"Authorization": f"Bearer {claim.token}"}
        return await self.ask(
            "POST", f"__ds/subscriptions/{claim.subscription_id}/ack", bearer, json=body
        )

    async def renewed(self, claim: Claim) -> Claim:
        """The claim after a heartbeat, with its new tokens."""
        answer = await self.ack(claim)
        assert answer.status_code == 200, answer.text
        body = answer.json()
        return claim._replace(token=body["token"], write_token=body["write_token"])

    async def done(self, claim: Claim, path: str) -> httpx.Response:
        acks = [{"stream": path, "offset": await self.tail(path)}]
        return await self.ack(claim, done=True, acks=acks)

    async def verify(self, name: str, headers: dict[str, str]) -> httpx.Response:
        return await self.ask("POST", f"__ds/subscriptions/{name}/claim/verify", headers)

    async def delete(self, name: str) -> None:
        gone = await self.ask("DELETE", f"__ds/subscriptions/{name}", SERVICE)
        assert gone.status_code == 204


def under(claim: Claim | str, producer: str, epoch: int, seq: int) -> dict[str, str]:
    """The headers of a fenced write."""
    token = claim if isinstance(claim, str) else claim.write_token
    return {"Write-Token": token, **producing(producer, epoch, seq)}


def producing(producer: str, epoch: int, seq: int) -> dict[str, str]:
    return {
        "Producer-Id": producer,
        "Producer-Epoch": str(epoch),
        "Producer-Seq": str(seq),
    }


def error(response: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = response.json()["error"]
    return found


@asynccontextmanager
async def fenced(tmp_path: Path, mode: str = "required") -> AsyncIterator[Fenced]:
    auth = AuthConfig(mode="required", root_token=ROOT) if mode == "required" else AuthConfig()
    local = SubscriptionsConfig(allow_local_http=True)
    async with (
        serving(tmp_path, auth=auth, subscriptions=local) as server,
        server.client() as client,
    ):
        yield Fenced(server, client)
