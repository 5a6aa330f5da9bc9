"""Whatever a path looks like, the stream that is judged is the stream that is served.

Each token is for one stream. Whatever such a token is granted, by a path made up of escapes, dots,
slashes and other spellings, must be about its own stream: what the answer has, and every command.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from urllib.parse import quote_from_bytes

import pytest

from streamd.auth.tokens import mint
from streamd.config.settings import AuthConfig, Config
from streamd.http.access.needs import SERVER, Need
from streamd.http.ops import _scope, create_ops_app
from streamd.http.protocol.messages import Request
from streamd.http.router import find
from streamd.http.routes import OPERATIONS
from streamd.process.metrics import Metrics
from streamd.streams.commands import Command
from tests.http.serving import Answer, RawClient, Serving, serving
from tests.support.seeds import first_seed

SEED = first_seed()
ROUNDS = 1200
ROOT = mint(1, b"root" * 5)
# Bucket and name, similar to each other in every way in which a path can be misread.
STREAMS = (
    ("aaaa", "b"),
    ("aaaa", "b/c"),
    ("aaaa", "b%2Fc"),
    ("aaaa", "B"),
    ("aaaa", "b;c"),
    ("aaaa", "."),
    ("aaaa", "é"),
    ("aaaa", "b/snapshot"),
    ("aaaab", "b"),
    ("_default", "aaaa"),
    ("_default", "cluster"),
    ("cluster", "status"),
    ("v1", "stream"),
)
VERBS = ("read", "append", "create", "close", "delete", "fork", "snapshot")
METHODS = ("GET", "GET", "HEAD", "POST", "POST", "PUT", "PUT", "PUT", "DELETE")
PIECES = ("/", "//", ".", "..", "/./", "/../", "%2F", "%2f", "%2e", "%252F", "%00", ";", "%5c", "*")
_MARK = re.compile(rb"#\d\d#")
BELOW = ("", "", "", "", "/append-batch", "/snapshot", "/bootstrap", "/snapshot/0_1", "/streams")


def shaped(random: Random, bucket: str, name: str) -> str:
    """A path that names a stream, or nearly so."""
    prefix = random.choice(("/v1/stream/", "/v1/stream/", "/"))
    named = name if bucket == "_default" and prefix != "/" else f"{bucket}/{name}"
    path = prefix + "".join(spelled(random, byte) for byte in named.encode())
    path += random.choice(BELOW)
    for _ in range(random.choice((0, 0, 1, 2))):
        at = random.randrange(len(path) + 1)
        path = path[:at] + random.choice(PIECES) + path[at + random.randrange(2) :]
    return path


def spelled(random: Random, byte: int) -> str:
    """A byte as it is, or as one of its escapes; slashes stay."""
    if byte == ord("/") or random.random() < 0.7:
        return quote_from_bytes(bytes([byte]), "/;*.")
    return random.choice(("%%%02X", "%%%02x")) % byte


async def ask(client: RawClient, method: str, path: str, token: str, body: bytes) -> Answer:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    await client.send(head.encode() + body)
    return await client.read_response(to_head=method == "HEAD")


async def tokens_of(server: Serving) -> list[str]:
    """A token for each stream, which permits nothing else."""
    found = []
    headers = {"Authorization": f"Bearer {ROOT}"}
    async with server.client(headers=headers) as client:
        for number, (bucket, name) in enumerate(STREAMS):
            body = {"name": f"t{number}", "scopes": [f"{verb}:{bucket}/{name}" for verb in VERBS]}
            made = await client.post("/auth/tokens", json=body)
            assert made.status_code == 201, made.text
            found.append(made.json()["token"])
    return found


@pytest.mark.parametrize("stack", ["front-door", "hypercorn"])
async def test_the_key_that_is_judged_is_the_key_that_is_served(tmp_path: Path, stack: str) -> None:
    random = Random(SEED)
    granted = set()
    auth = AuthConfig(mode="required", root_token=ROOT)
    async with serving(tmp_path, auth=auth, http=stack) as server:
        tokens = await tokens_of(server)
        commands: list[Command] = []
        server.node.group.watch(commands.extend, lambda: None)
        for _ in range(ROUNDS):
            mine = random.randrange(len(STREAMS))
            key = "\0".join(STREAMS[mine]).encode()
            meant = STREAMS[mine] if random.random() < 0.7 else random.choice(STREAMS)
            method, path = random.choice(METHODS), shaped(random, *meant)
            commands.clear()
            mark = b"#%02d#" % mine
            body = mark if method in ("POST", "PUT") else b""
            async with server.connect() as client:
                answer = await ask(client, method, path, tokens[mine], body)
            served = {found for each in commands if (found := getattr(each, "key", None))}
            assert served <= {key}, (method, path, key, answer)
            if answer.status == 200:
                assert set(_MARK.findall(answer.body)) <= {mark}, (path, key, answer)
            if answer.status < 300:
                granted.add((method, STREAMS[mine]))
    assert len(granted) > 2 * len(STREAMS), "most is refused, and not all"


def test_an_operation_needs_what_the_rule_that_answers_it_needs() -> None:
    """Escapes are not decoded on the way to the operations app, or would need all."""
    random = Random(SEED)
    app = create_ops_app(Metrics(), None, None, None, random, Config())  # type: ignore[arg-type]
    rules = app.url_map
    adapter, seen = rules.bind("x"), set()
    declared = {
        (re.sub(r"{(\w+)}", r"<\1>", one.path.template), one.method): (
            () if one.needs is None else one.needs(None, {})
        )
        for one in OPERATIONS
    }
    for _ in range(20_000):
        meant = random.choice(OPERATIONS)
        path = "".join(
            spelled(random, byte) if random.random() < 0.05 else chr(byte)
            for byte in re.sub(r"{\w+}", "ci", meant.path.template).encode()
        )
        if random.random() < 0.3:
            at = random.randrange(len(path) + 1)
            path = path[:at] + random.choice(PIECES) + path[at:]
        method = meant.method
        request = Request(method, path.encode(), b"", {}, b"", None)  # type: ignore[arg-type]
        if not adapter.test(_scope(request)["path"], method):
            continue
        rule, _ = adapter.match(_scope(request)["path"], method, return_rule=True)
        needed = find(request.path).resource.scopes(method, None, {})
        assert needed in (declared[rule.rule, method], (Need("admin", SERVER),)), path
        seen.add((rule.rule, method))
    assert len(seen) > len(OPERATIONS) - 3
