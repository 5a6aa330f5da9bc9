"""`streamd.client` at servers that answer anything: typed errors, and limits on memory."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from streamd.client import SequenceGap, StreamdError, Unsendable
from tests.client.drivers import KINDS, connected

_OK = b"HTTP/1.1 200 OK\r\nStream-Next-Offset: 1\r\nStream-Up-To-Date: true\r\n"


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The URL of a server that gives each connection this answer and ends it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):  # The listener was shut down.
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.recv(64 * 1024)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()


def encoded(coding: bytes, body: bytes) -> bytes:
    head = b"Content-Encoding: %b\r\nContent-Length: %d\r\n\r\n" % (coding, len(body))
    return _OK + head + body


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_is_compressed_twice_is_refused(kind: str) -> None:
    """Five kilobytes of it may decode to gigabytes at once."""
    body = gzip.compress(gzip.compress(b"x"))
    with (
        answering(encoded(b"gzip, gzip", body)) as url,
        connected(kind, url) as client,
        pytest.raises(StreamdError, match="Content-Encoding"),
    ):
        list(client.stream("demo/x").read())


@pytest.mark.parametrize("kind", KINDS)
def test_a_proxy_may_compress_an_answer_once(kind: str) -> None:
    body = gzip.compress(b"x")
    with answering(encoded(b"gzip", body)) as url, connected(kind, url) as client:
        assert [chunk.data for chunk in client.stream("demo/x").read()] == [b"x"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", ["a" * 64, "a..b"])
def test_a_host_that_has_no_address_is_a_typed_error(kind: str, host: str) -> None:
    """As the URL of a client, or where a server redirects to."""
    with pytest.raises(Unsendable), connected(kind, f"http://{host}") as client:
        client.stream("demo/x").head()
    redirect = b"HTTP/1.1 307 X\r\nLocation: http://%b/\r\nContent-Length: 0\r\n\r\n"
    with (
        answering(redirect % host.encode()) as url,
        connected(kind, url) as client,
        pytest.raises(Unsendable, match=host[:4]),
    ):
        client.stream("demo/x").head()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", ["xn--a", "xn--a:1"])
def test_a_redirect_to_a_host_whose_name_cannot_be_decoded_is_a_typed_error(
    kind: str, host: str
) -> None:
    redirect = b"HTTP/1.1 307 X\r\nLocation: http://%b/\r\nContent-Length: 0\r\n\r\n"
    with answering(redirect % host.encode()) as url, connected(kind, url) as client:
        for _ in range(2):  # The client stays usable.
            with pytest.raises(Unsendable, match="redirects"):
                client.stream("demo/x").head()


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_no_server_counts_to_are_ignored(kind: str) -> None:
    """Python refuses to convert them: of more than 4,300 digits."""
    digits = b"9" * 5000
    head = _OK + b"Stream-TTL: %b\r\n\r\n" % digits
    with answering(head) as url, connected(kind, url) as client:
        assert client.stream("demo/x").head().ttl_s is None
    refusal = b'{"error":{"code":"SEQUENCE_GAP","message":"so"}}'
    head = b"HTTP/1.1 409 X\r\nProducer-Expected-Seq: %b\r\n\r\n" % digits
    with (
        answering(head + refusal) as url,
        connected(kind, url) as client,
        pytest.raises(SequenceGap) as failed,
    ):
        client.stream("demo/x").head()
    assert failed.value.expected == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000 + b"]" * 200_000,
        b"5",
        b'{"a": 1}',
        b"null",
        b"\xff",
        b"[" + b"9" * 5000 + b"]",
    ],
    ids=["deep", "number", "object", "null", "not-utf-8", "digits"],
)
def test_what_is_no_array_of_json_is_a_value_error(kind: str, body: bytes) -> None:
    with (
        answering(_OK + b"Content-Type: application/json\r\n\r\n" + body) as url,
        connected(kind, url) as client,
        pytest.raises(ValueError),  # noqa: PT011
    ):
        list(client.stream("demo/x").read_json())
