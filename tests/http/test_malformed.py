"""Requests that are not quite HTTP: each is refused, ends its connection, and changes nothing.

Every vector is aimed at a stream that is there and would take the append, so that a server that
repaired the request, or found a second one inside it, would be caught by the stream's tail.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.http.serving import Serving, serving

WITNESS = b"/v1/stream/witness"
LIMITS: dict[str, Any] = {"max_header_bytes": 12 * 1024, "max_body_bytes": 1024, "max_headers": 20}
SMUGGLED = b"POST /v1/stream/witness HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
SMUGGLED += b"Content-Length: 8\r\n\r\nsmuggled"


class Vector(NamedTuple):
    name: str
    raw: bytes
    status: int
    code: str = "BAD_REQUEST"


def post(
    *lines: bytes, body: bytes = b"", target: bytes = WITNESS, version: bytes = b"HTTP/1.1"
) -> bytes:
    """An append to the witness, valid except for what the test puts into it."""
    start = b"POST %b %b" % (target, version)
    head = b"\r\n".join((start, b"Host: x", b"Content-Type: text/plain", *lines))
    return head + b"\r\n\r\n" + body


def get(target: bytes, method: bytes = b"GET", version: bytes = b"HTTP/1.1") -> bytes:
    return b"%b %b %b\r\nHost: x\r\n\r\n" % (method, target, version)


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


def sized(*lines: bytes) -> bytes:
    return post(b"Content-Length: 2", *lines, body=b"hi")


def with_length(value: bytes) -> bytes:
    return post(b"Content-Length: " + value, body=b"hi")


def with_coding(value: bytes) -> bytes:
    return post(b"Transfer-Encoding: " + value, body=b"2\r\nhi\r\n0\r\n\r\n")


LINES_AND_CHARACTERS = [
    Vector("all line ends are bare LF", sized().replace(b"\r\n", b"\n"), 400),
    Vector("one line ends in a bare LF", sized().replace(b"x\r\n", b"x\n"), 400),
    Vector("the head ends in a bare LF", b"POST / HTTP/1.1\r\nHost: x\r\n\n", 400),
    Vector("one line ends in a bare CR", sized().replace(b"x\r\n", b"x\r"), 400),
    Vector("a bare CR in a value", sized(b"X-A: b\rc"), 400),
    Vector("CR CR LF", sized(b"X-A: b\r"), 400),
    Vector("a line folded with a space", sized(b"X-A: b", b" c"), 400),
    Vector("a line folded with a tab", sized(b"X-A: b", b"\tc"), 400),
    Vector("a space before the first header", sized().replace(b"Host", b" Host"), 400),
    Vector("NUL in a value", sized(b"X-A: b\0c"), 400),
    Vector("NUL in a name", sized(b"X-\0A: b"), 400),
    Vector("NUL in the target", get(b"/v1/stream/wit\0ness"), 400),
    Vector("a control character in a value", sized(b"X-A: b\x01c"), 400),
    Vector("DEL in a value", sized(b"X-A: b\x7fc"), 400),
    Vector("a space before the colon", sized(b"X-A : b"), 400),
    Vector("a tab before the colon", sized(b"X-A\t: b"), 400),
    Vector("a space within a name", sized(b"X A: b"), 400),
    Vector("a header without a name", sized(b": b"), 400),
    Vector("a header without a colon", sized(b"X-A"), 400),
    Vector("a name that is not a token", sized(b"X(A): b"), 400),
    Vector("a name beyond ASCII", sized(b"X-\xe9: b"), 400),
]

LENGTHS_AND_CODINGS = [
    Vector("two equal lengths", sized(b"Content-Length: 2"), 400),
    Vector("two different lengths", sized(b"Content-Length: 3"), 400),
    Vector("two lengths in one header", with_length(b"2, 2"), 400),
    Vector("an empty length", with_length(b""), 400),
    Vector("a negative length", with_length(b"-2"), 400),
    Vector("a length with a plus", with_length(b"+2"), 400),
    Vector("a hexadecimal length", with_length(b"0x2"), 400),
    Vector("a fractional length", with_length(b"2.0"), 400),
    Vector("a length with a space in it", with_length(b"1 2"), 400),
    Vector("a length past 64 bits", with_length(b"18446744073709551618"), 400),
    Vector("a length past what is taken", with_length(b"9" * 18), 413, "BODY_TOO_LARGE"),
    Vector(
        "a length and chunked",
        post(b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
        400,
    ),
    Vector(
        "chunked and a length",
        post(b"Transfer-Encoding: chunked", b"Content-Length: 5", body=b"0\r\n\r\n" + SMUGGLED),
        400,
    ),
    Vector("coding gzip", with_coding(b"gzip"), 400),
    Vector(
        "coding gzip, chunked",
        with_coding(b"gzip, chunked"),
        400,
        "INVALID_TRANSFER_ENCODING",
    ),
    Vector("coding chunked, gzip", with_coding(b"chunked, gzip"), 400),
    Vector("coding chunked, chunked", with_coding(b"chunked, chunked"), 400),
    Vector("coding xchunked", with_coding(b"xchunked"), 400),
    Vector("coding chunked in quotes", with_coding(b'"chunked"'), 400),
    Vector("coding identity", with_coding(b"identity"), 400),
    Vector("coding empty", with_coding(b""), 400),
    Vector("coding with a parameter", with_coding(b"chunked;q=1"), 400),
    Vector(
        "chunked twice", post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400
    ),
    Vector(
        "chunked on HTTP/1.0",
        with_coding(b"chunked").replace(b"HTTP/1.1", b"HTTP/1.0"),
        400,
        "INVALID_TRANSFER_ENCODING",
    ),
    Vector(
        "a body over the limit by its length",
        post(b"Content-Length: 1025"),
        413,
        "BODY_TOO_LARGE",
    ),
]

CHUNKS = [
    Vector(
        "a chunk size that is not a number", chunked(b"zz\r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"
    ),
    Vector("an empty chunk size", chunked(b"\r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("a chunk size with 0x", chunked(b"0x2\r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("a negative chunk size", chunked(b"-2\r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("a chunk size with a plus", chunked(b"+2\r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("a space before the chunk size", chunked(b" 2\r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("a space after the chunk size", chunked(b"2 \r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector(
        "a chunk size that wraps at 64 bits",
        chunked(b"10000000000000002\r\nhi\r\n0\r\n\r\n"),
        400,
        "BAD_CHUNK",
    ),
    Vector("a chunk size ended by LF", chunked(b"2\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("an extension with LF", chunked(b"2;a\nb\r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("an extension with CR", chunked(b"2;a\rb\r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("an extension with NUL", chunked(b"2;a\0b\r\nhi\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("an endless extension", chunked(b"2;" + b"a" * 300), 400, "BAD_CHUNK"),
    Vector("no CRLF after a chunk", chunked(b"2\r\nhi0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("LF after a chunk", chunked(b"2\r\nhi\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("a chunk longer than its size", chunked(b"2\r\nhey\r\n0\r\n\r\n"), 400, "BAD_CHUNK"),
    Vector("a last chunk ended by LF", chunked(b"2\r\nhi\r\n0\r\n\n"), 400, "BAD_CHUNK"),
    Vector(
        "a length as a trailer",
        chunked(b"2\r\nhi\r\n0\r\nContent-Length: 9\r\n\r\n"),
        400,
        "BAD_TRAILER",
    ),
    Vector(
        "credentials as a trailer",
        chunked(b"2\r\nhi\r\n0\r\nAuthorization: Bearer x\r\n\r\n"),
        400,
        "BAD_TRAILER",
    ),
    Vector(
        "a sequence number as a trailer",
        chunked(b"2\r\nhi\r\n0\r\nProducer-Seq: 9\r\n\r\n"),
        400,
        "BAD_TRAILER",
    ),
    Vector(
        "a trailer without a colon", chunked(b"2\r\nhi\r\n0\r\nX-A\r\n\r\n"), 400, "BAD_TRAILER"
    ),
    Vector(
        "a space before a trailer's colon",
        chunked(b"2\r\nhi\r\n0\r\nContent-Length : 9\r\n\r\n"),
        400,
        "BAD_TRAILER",
    ),
    Vector(
        "a tab before a trailer's colon",
        chunked(b"2\r\nhi\r\n0\r\nContent-Length\t: 9\r\n\r\n"),
        400,
        "BAD_TRAILER",
    ),
    Vector(
        "a control character in a trailer",
        chunked(b"2\r\nhi\r\n0\r\nX-A: \x02\r\n\r\n"),
        400,
        "BAD_TRAILER",
    ),
    Vector(
        "a folded trailer", chunked(b"2\r\nhi\r\n0\r\nX-A: b\r\n c\r\n\r\n"), 400, "BAD_TRAILER"
    ),
    Vector(
        "trailers without end",
        chunked(b"2\r\nhi\r\n0\r\n" + b"X-A: 0123456789\r\n" * 300),
        431,
        "TRAILERS_TOO_LARGE",
    ),
    Vector(
        "a body over the limit in one chunk",
        chunked(b"401\r\n" + b"x" * 1025 + b"\r\n0\r\n\r\n"),
        413,
        "BODY_TOO_LARGE",
    ),
    Vector(
        "a body over the limit in many chunks",
        chunked(b"2\r\nhi\r\n" * 513 + b"0\r\n\r\n"),
        413,
        "BODY_TOO_LARGE",
    ),
]

REQUEST_LINES = [
    Vector("no Host", sized().replace(b"Host: x\r\n", b""), 400, "MISSING_HOST"),
    Vector("two Hosts", sized(b"Host: x"), 400, "DUPLICATE_HEADER"),
    Vector("a Host with a path", sized().replace(b": x", b": x/y"), 400, "INVALID_HOST"),
    Vector("a Host with a user", sized().replace(b": x", b": u@x"), 400, "INVALID_HOST"),
    Vector("a Host with a space", sized().replace(b": x", b": x y"), 400, "INVALID_HOST"),
    Vector("a Host with a bad port", sized().replace(b": x", b": x:http"), 400, "INVALID_HOST"),
    Vector("a method in lower case", get(WITNESS, b"post"), 501, "METHOD_UNKNOWN"),
    Vector("a method that is not known", get(WITNESS, b"PROPFIND"), 501, "METHOD_UNKNOWN"),
    Vector("a method nobody knows", get(WITNESS, b"BREW"), 501, "METHOD_UNKNOWN"),
    Vector("two spaces before the target", get(b" " + WITNESS), 400),
    Vector("two spaces after the target", get(WITNESS + b" "), 400),
    Vector("another protocol", get(WITNESS, b"OPTIONS", version=b"RTSP/1.0"), 400),
    Vector("yet another protocol", get(WITNESS, b"SOURCE", version=b"ICE/1.0"), 400),
    Vector("CONNECT", get(b"x:80", b"CONNECT"), 405, "METHOD_NOT_ALLOWED"),
    Vector("TRACE", get(WITNESS, b"TRACE"), 405, "METHOD_NOT_ALLOWED"),
    Vector("HTTP/2.0", get(WITNESS, version=b"HTTP/2.0"), 505, "HTTP_VERSION"),
    Vector("HTTP/0.9", get(WITNESS, version=b"HTTP/0.9"), 505, "HTTP_VERSION"),
    Vector("HTTP/1.2", get(WITNESS, version=b"HTTP/1.2"), 400),
    Vector("a version in lower case", get(WITNESS, version=b"http/1.1"), 400),
    Vector("no version", b"GET /v1/stream/witness\r\n\r\n", 400),
    Vector("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 501, "METHOD_UNKNOWN"),
    Vector("bytes of TLS", b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + b"\0" * 32, 400),
    Vector("a target too long", get(b"/" + b"a" * 8192), 414, "TARGET_TOO_LONG"),
    Vector("a target without a slash", get(b"v1/stream/witness"), 400, "INVALID_TARGET"),
    Vector("a target of another scheme", get(b"ftp://x/y"), 400, "INVALID_TARGET"),
    Vector("an absolute target with a user", get(b"http://u@x/y"), 400, "INVALID_TARGET"),
    Vector("a truncated escape", get(WITNESS + b"%4"), 400, "INVALID_PATH"),
    Vector("an escape that is not hexadecimal", get(WITNESS + b"%zz"), 400, "INVALID_PATH"),
    Vector("an escaped NUL", get(WITNESS + b"%00"), 400, "INVALID_PATH"),
    Vector("a .. segment", get(b"/v1/stream/a/../witness"), 400, "INVALID_PATH"),
    Vector("a .. segment at the end", get(b"/v1/stream/witness/.."), 400, "INVALID_PATH"),
    Vector("an escaped .. segment", get(b"/v1/stream/a/%2e%2E/witness"), 400, "INVALID_PATH"),
    Vector("a half-escaped .. segment", get(b"/v1/stream/a/.%2e/witness"), 400, "INVALID_PATH"),
    Vector("a fragment", get(WITNESS + b"#top"), 400, "INVALID_TARGET"),
    Vector("a backslash", get(b"/v1/stream\\witness"), 400, "INVALID_TARGET"),
    Vector("a quotation mark", get(WITNESS + b'"'), 400, "INVALID_TARGET"),
    Vector("a space in the target", get(b"/v1/stream/wit ness"), 400),
    Vector("a tab before the target", sized().replace(b" /", b"\t/"), 400),
    Vector("a space after the version", get(WITNESS, version=b"HTTP/1.1 "), 400),
    Vector("bytes beyond ASCII in the target", get(b"/v1/stream/\xc3\xa9"), 400, "INVALID_TARGET"),
    Vector("a head too large", sized(b"X-A: " + b"a" * 12_288), 431, "HEADERS_TOO_LARGE"),
    Vector("a head without end", sized(b"a" * 12_288)[:-6], 431, "HEADERS_TOO_LARGE"),
    Vector("too many headers", sized(*[b"X-A: b"] * 20), 431, "TOO_MANY_HEADERS"),
    Vector("an expectation not known", sized(b"Expect: 200-ok"), 417, "EXPECTATION_FAILED"),
]  # fmt: skip

REPEATED = [
    Vector(f"two of {name.decode()}", sized(name + b": 1", name + b": 1"), 400, "DUPLICATE_HEADER")
    for name in (
        b"Producer-Id",
        b"Producer-Epoch",
        b"Producer-Seq",
        b"Stream-Seq",
        b"Stream-Closed",
        b"Stream-TTL",
        b"stream-expires-at",
        b"Stream-Forked-From",
    )
] + [Vector("two content types", sized(b"Content-type: text/html"), 400, "DUPLICATE_HEADER")]

VECTORS = LINES_AND_CHARACTERS + LENGTHS_AND_CODINGS + CHUNKS + REQUEST_LINES + REPEATED


async def make_witness(server: Serving) -> str | None:
    async with server.client() as client:
        made = await client.put("/v1/stream/witness", headers={"Content-Type": "text/plain"})
        assert made.status_code == 201
    return await server.tail("/v1/stream/witness")


@pytest.mark.parametrize("vector", VECTORS, ids=[vector.name for vector in VECTORS])
async def test_a_malformed_request_is_refused_and_changes_nothing(
    vector: Vector, tmp_path: Path
) -> None:
    async with serving(tmp_path, **LIMITS) as server:
        tail = await make_witness(server)
        async with server.connect() as client:
            await client.send(vector.raw)
            answer = await client.read_response()
            assert (answer.status, answer.code) == (vector.status, vector.code)
            assert answer.headers["connection"] == "close"
            assert await client.closed(), "one answer, then the end"
        assert await server.tail("/v1/stream/witness") == tail
        assert server.node.group.state.header.streams == 1


async def test_the_repaired_vectors_are_accepted(tmp_path: Path) -> None:
    async with serving(tmp_path, **LIMITS) as server:
        await make_witness(server)
        async with server.connect() as client:
            for sound in (sized(), chunked(b"2\r\nhi\r\n0\r\n\r\n"), with_coding(b"Chunked")):
                await client.send(sound)
                assert (await client.read_response()).status == 204


@pytest.mark.parametrize(
    "request_",
    [
        get(b"http://x/v1/stream/witness"),
        get(b"HTTP://other:80/v1/stream/witness"),
        get(WITNESS + b"?offset=-1"),
        get(b"/v1/stream/%77itness"),
        b"\r\n" + get(WITNESS),
        b"\r\n\r\n" + get(WITNESS),
        chunked(b"2;name=value\r\nhi\r\n00\r\nX-Checksum: 1\r\n\r\n"),
        chunked(b"0002\r\nhi\r\n0\r\n\r\n"),
        sized(b"X-A: caf\xe9", b"X-B:", b"X-C:\tb\t"),
        sized(b"Expect: 100-Continue"),
        sized(b"Authorization: Bearer one", b"Authorization: Bearer two"),
        sized(b"Upgrade: websocket", b"Connection: upgrade"),
        post(b"Content-Length: 1024", body=b"x" * 1024),
    ],
    ids=[
        "a target in absolute form",
        "an absolute target of another host",
        "a query",
        "an escaped letter",
        "an empty line before the request",
        "two empty lines before the request",
        "chunk extensions and harmless trailers",
        "zeros before a chunk size",
        "odd but legal values",
        "an expectation that is met already",
        "credentials twice",
        "an upgrade, which is declined by silence",
        "a body just within the limit",
    ],
)
async def test_an_unusual_but_valid_request_is_answered(request_: bytes, tmp_path: Path) -> None:
    async with serving(tmp_path, **LIMITS) as server:
        await make_witness(server)
        async with server.connect() as client:
            await client.send(request_ + get(b"/healthz"))
            assert (await client.read_response()).status in (200, 204)
            assert (await client.read_response()).status == 200


async def test_a_body_announced_too_large_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with serving(tmp_path, **LIMITS) as server:
        await make_witness(server)
        async with server.connect() as client:
            await client.send(post(b"Content-Length: 5000000", b"Expect: 100-continue"))
            assert (await client.read_response()).status == 413, "without 100 Continue before"
            assert server.door.shared.bodies.held == 0


async def test_a_refusal_reaches_a_client_that_keeps_sending(tmp_path: Path) -> None:
    async with serving(tmp_path, **LIMITS) as server, server.connect() as client:
        await client.send(post(b"Content-Length: 500000", body=b"x" * 500_000))
        assert (await client.read_response()).status == 413
