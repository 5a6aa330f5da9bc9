"""Posting webhooks to receivers on real sockets, which behave in any way."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trustme

from streamd.config.settings import ConfigError
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.node.delivery.sender import MAX_ANSWER_BYTES, DeliveryFailed, WebhookSender
from streamd.node.delivery.targets import WebhookTargets
from tests.node.delivery.receivers import (
    Behaviour,
    answers,
    close_early,
    hang,
    receiver,
    sends,
)

BODY = b'{"subscription_id":"s"}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def sender(**more: object) -> WebhookSender:
    config = SubscriptionsConfig(allow_local_http=True, **more)  # type: ignore[arg-type]
    return WebhookSender(config, WebhookTargets(config))


async def post(url: str, **more: object) -> bytes:
    with trio.fail_after(20):
        return await sender(**more).post(url, BODY, "t=1,kid=k,ed25519=s")


async def test_a_webhook_is_posted_with_its_signature_and_nothing_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with receiver(answers(200, b'{"done":true}')) as there:
        assert await post(there.url) == b'{"done":true}'
    [request] = there.requests
    assert request.line == "POST /hooks?x=1 HTTP/1.1"
    assert request.body == BODY
    assert set(request.headers) == {
        "host", "user-agent", "accept", "accept-encoding", "content-type", "content-length",
        "connection", "webhook-signature",
    }  # fmt: skip
    assert request.headers["webhook-signature"] == "t=1,kid=k,ed25519=s"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["host"] == f"127.0.0.1:{there.port}"


async def test_the_name_of_this_machine_is_resolved() -> None:
    async with receiver(answers()) as there:
        assert await post(f"http://localhost:{there.port}/") == b"{}"
    assert there.requests[0].headers["host"] == f"localhost:{there.port}"


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_any_success_delivers(status: int) -> None:
    async with receiver(answers(status, b"")) as there:
        assert await post(there.url) == b""


@pytest.mark.parametrize("status", [300, 304, 400, 401, 404, 410, 429, 500, 503])
async def test_any_other_status_fails(status: int) -> None:
    async with receiver(answers(status, b'{"done":true}')) as there:
        with pytest.raises(DeliveryFailed, match=f"status {status}"):
            await post(there.url)


async def test_a_redirect_is_not_followed() -> None:
    async with receiver(answers()) as elsewhere:
        where = f"Location: http://127.0.0.1:{elsewhere.port}/"
        for status in (301, 302, 303, 307, 308):
            async with receiver(answers(status, b"", where)) as there:
                with pytest.raises(DeliveryFailed, match=f"status {status}"):
                    await post(there.url)
        assert elsewhere.connections == 0


@pytest.mark.parametrize(
    "behave",
    [
        close_early,
        sends(b""),
        sends(b"\x00\xff" * 1000),
        sends(b"HTTP/1.1 OK 200\r\n\r\n"),
        sends(b"HTTP/1.1 200 OK\r\n"),
        sends(b"SSH-2.0-OpenSSH_9.2\r\n"),
        sends(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000 + b"\r\n"),
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx"),
        sends(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"),
    ],
    ids=["closed", "empty", "binary", "line", "cut", "ssh", "huge head", "two lengths", "101"],
)
async def test_what_is_not_an_answer_fails(behave: Behaviour) -> None:
    async with receiver(behave) as there:
        with pytest.raises(DeliveryFailed):
            await post(there.url)


@pytest.mark.parametrize(
    "behave",
    [
        sends(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"),
        sends(CHUNKED + b"zz\r\n"),
        sends(CHUNKED + b"5\r\nab"),
        sends(CHUNKED + b"\xff\xff\xff\xff\xff\xff\xff\xff\r\n"),
        answers(200, b"x" * (MAX_ANSWER_BYTES + 1)),
    ],
    ids=["cut off", "chunk without length", "chunk cut off", "binary chunk", "too large"],
)
async def test_a_success_whose_body_cannot_be_used_says_nothing_more(behave: Behaviour) -> None:
    async with receiver(behave) as there:
        assert await post(there.url) == b""


async def test_the_largest_body_that_is_read() -> None:
    body = b"x" * MAX_ANSWER_BYTES
    async with receiver(answers(200, body)) as there:
        assert await post(there.url) == body


async def test_a_gigabyte_is_not_read() -> None:
    sent = 0

    async def pour(stream: trio.abc.Stream) -> None:
        nonlocal sent
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
        while sent < 1_000_000_000:
            await stream.send_all(b"x" * 65536)
            sent += 65536

    async with receiver(pour) as there:
        assert await post(there.url) == b""
    assert sent < 20_000_000


async def trickle(stream: trio.abc.Stream) -> None:
    """Send a byte of a head now and then."""
    for byte in b"HTTP/1.1 200 OK\r\nX: " + b"y" * 10_000:
        await stream.send_all(bytes((byte,)))
        await trio.sleep(0.05)


async def trickle_body(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        await stream.send_all(b" ")
        await trio.sleep(0.05)


@pytest.mark.parametrize("behave", [hang, trickle])
async def test_a_receiver_has_a_limited_time_in_all(
    behave: Callable[[trio.abc.Stream], Awaitable[None]],
) -> None:
    async with receiver(behave) as there:
        with pytest.raises(DeliveryFailed, match="no answer within 1 s"):
            await post(there.url, delivery_timeout_ms=1_000)


async def test_a_success_stands_even_if_its_body_takes_too_long() -> None:
    async with receiver(trickle_body) as there:
        assert await post(there.url, delivery_timeout_ms=3_000) == b""


async def test_nobody_listens() -> None:
    async with receiver(answers()) as there:
        pass
    with pytest.raises(DeliveryFailed, match="no connection"):
        await post(there.url)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://10.0.0.1/", "https"),
        ("https://127.0.0.1/", "not a public address"),
        ("https://no-such-name.invalid/", "no connection"),
        ("nonsense", "not a URL"),
    ],
)
async def test_a_url_that_is_no_longer_permitted_is_not_asked(url: str, why: str) -> None:
    with pytest.raises(DeliveryFailed, match=why):
        await post(url)


# -- addresses -------------------------------------------------------------------------------------


async def resolved_as(
    monkeypatch: pytest.MonkeyPatch, found: list[str], url: str, **more: object
) -> bytes:
    """Post while names have these addresses, which change with every look."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *more: int) -> list[tuple[object, ...]]:
        if host.startswith("127."):
            return real(host, port, *more)  # type: ignore[return-value]
        asked.append(host)
        return [(2, 1, 6, "", (one, port)) for one in found] if len(asked) == 1 else []

    monkeypatch.setattr("streamd.node.delivery.targets.socket.getaddrinfo", resolve)
    try:
        return await post(url, **more)
    finally:
        assert len(asked) == 1, "the connection is to what was judged"


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::ffff:7f00:1"])
async def test_a_public_name_of_a_private_address_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    async with receiver(answers()) as there:
        url = f"https://rebound.example:{there.port}/"
        with pytest.raises(DeliveryFailed, match="not a public address"):
            await resolved_as(monkeypatch, [address], url)
        assert there.connections == 0


async def test_localhost_that_leads_elsewhere_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(DeliveryFailed, match="not this machine"):
        await resolved_as(monkeypatch, ["10.0.0.1"], "http://localhost:3000/")


async def test_a_name_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeliveryFailed, match="has no address"):
        await resolved_as(monkeypatch, [], "http://localhost:3000/")


async def test_the_next_address_is_tried_if_one_takes_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with receiver(answers()) as there:
        url = f"http://localhost:{there.port}/"
        assert await resolved_as(monkeypatch, ["127.0.0.2", "10.0.0.1", "127.0.0.1"], url) == b"{}"
    assert len(there.requests) == 1


# -- TLS -------------------------------------------------------------------------------------------


def tls_for(name: str, tmp_path: Path) -> tuple[ssl.SSLContext, dict[str, object]]:
    """A server's side of TLS with that name, and the configuration that trusts its authority."""
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(server)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return server, {"ca": str(file), "allowed_networks": ["127.0.0.0/8"]}


async def test_tls_has_the_name_and_the_connection_the_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tls, trusting = tls_for("worker.example", tmp_path)
    async with receiver(answers(), tls) as there:
        url = f"https://worker.example:{there.port}/"
        assert await resolved_as(monkeypatch, ["127.0.0.1"], url, **trusting) == b"{}"
    assert there.requests[0].headers["host"] == f"worker.example:{there.port}"


async def test_a_certificate_of_another_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tls, trusting = tls_for("other.example", tmp_path)
    async with receiver(answers(), tls) as there:
        url = f"https://worker.example:{there.port}/"
        with pytest.raises(DeliveryFailed, match="certificate"):
            await resolved_as(monkeypatch, ["127.0.0.1"], url, **trusting)
        assert there.requests == []


async def test_a_certificate_of_an_unknown_authority_is_refused(tmp_path: Path) -> None:
    tls, trusting = tls_for("127.0.0.1", tmp_path)
    async with receiver(answers(), tls) as there:
        url = f"https://127.0.0.1:{there.port}/"
        assert await post(url, **trusting) == b"{}"
        with pytest.raises(DeliveryFailed, match="certificate"):
            await post(url, allowed_networks=["127.0.0.0/8"])


async def test_a_port_without_tls_is_not_spoken_to(tmp_path: Path) -> None:
    _, trusting = tls_for("127.0.0.1", tmp_path)
    async with receiver(answers()) as there:
        with pytest.raises(DeliveryFailed):
            await post(f"https://127.0.0.1:{there.port}/", **trusting, delivery_timeout_ms=2_000)
        assert there.requests == []


def test_authorities_that_cannot_be_read_end_the_start(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("")
    for name in ("absent.pem", "empty.pem"):
        with pytest.raises(ConfigError, match=r"subscriptions\.ca"):
            sender(ca=str(tmp_path / name))
