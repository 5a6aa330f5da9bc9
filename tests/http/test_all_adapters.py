"""Rules of the protocol that hold in both versions of HTTP and on every node of a cluster."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from tests.http.test_live import events

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
CLOSE = {"Stream-Closed": "true"}


@pytest.fixture
def path() -> str:
    """The paths of a stream of this test alone, on both surfaces."""
    return f"/v1/stream/everywhere/{uuid4()}"


def make(
    client: httpx.Client, url: str, headers: Mapping[str, str], content: bytes = b""
) -> httpx.Response:
    made = client.put(url, headers=dict(headers), content=content)
    assert made.status_code == 201, made.text
    return made


def refused(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


# -- closing --------------------------------------------------------------------------------------


def test_the_closing_control_event_is_up_to_date(
    urls: str, client: httpx.Client, path: str
) -> None:
    here, *_ = places = urls.split(",")
    tail = make(client, here + path, {**TEXT, **CLOSE}, b"all").headers["stream-next-offset"]
    last = {"streamNextOffset": tail, "upToDate": True, "streamClosed": True}
    for url in places:
        for offset in ("-1", "now", tail):
            told = events(client.get(f"{url}{path}?offset={offset}&live=sse").content)
            assert told[-1][0] == "control"
            assert json.loads(told[-1][1]) == last


# -- which error comes first ----------------------------------------------------------------------

NO_JSON = [b"{", b"[1,]", b"[]", b'"\xff"']


@pytest.mark.parametrize("body", NO_JSON)
def test_errors_of_the_stream_come_before_errors_of_the_body(
    urls: str, client: httpx.Client, path: str, body: bytes
) -> None:
    here, *_ = places = urls.split(",")
    for url in places:
        assert refused(client.post(url + path, headers=JSON, content=body)) == (
            404,
            "STREAM_NOT_FOUND",
        )
    make(client, here + path, TEXT, b"one")
    numbers = path + "-json"
    tail = make(client, here + numbers, JSON, b"1").headers["stream-next-offset"]
    for url in places:
        differs = client.post(url + path, headers=JSON, content=body)
        assert refused(differs) == (409, "CONTENT_TYPE_MISMATCH")
        unfit = client.post(url + numbers, headers=JSON, content=body)
        assert refused(unfit) == (400, "EMPTY_BODY" if body == b"[]" else "INVALID_JSON")
        new = client.put(url + path + "-new", headers=JSON, content=body)
        if body != b"[]":
            assert refused(new) == (400, "INVALID_JSON")
            assert client.head(url + path + "-new").status_code == 404
        differs = client.put(url + path, headers=JSON, content=body)
        assert refused(differs) == (409, "STREAM_EXISTS")
        assert client.put(url + numbers, headers=JSON, content=body).status_code == 200
    client.post(here + numbers, headers=CLOSE)
    for url in places:
        closed = client.post(url + numbers, headers=JSON, content=body)
        assert refused(closed) == (409, "STREAM_CLOSED")
        assert closed.headers["stream-closed"] == "true"
        assert closed.headers["stream-next-offset"] == tail
        assert client.get(url + numbers).json() == [1]


def test_a_batch_is_parsed_after_its_stream_was_found(
    urls: str, client: httpx.Client, path: str
) -> None:
    here, *_ = places = urls.split(",")
    batch = path.removeprefix("/v1/stream") + "/append-batch"
    make(client, here + path, {**TEXT, **CLOSE})
    for url in places:
        for body in (b"", b"\0\0\0\x05x", b"\0\0\0\x01{"):
            assert refused(client.post(url + batch, headers=JSON, content=body)) == (
                409,
                "STREAM_CLOSED",
            )


# -- JSON -----------------------------------------------------------------------------------------


def test_half_characters_of_json_stringify_are_kept(
    urls: str, client: httpx.Client, path: str
) -> None:
    here, *_ = places = urls.split(",")
    make(client, here + path, JSON, rb'["\ud83d"]')
    client.post(here + path, headers=JSON, content=rb'{"\uDE00":"\ud83dx\\ud83d"}')
    for url in places:
        assert client.get(url + path).content == rb'["\ud83d",{"\uDE00":"\ud83dx\\ud83d"}]'


# -- headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "br", "identity, gzip", "zstd"])
def test_an_encoded_body_is_refused_by_every_route_with_a_body(
    urls: str, client: httpx.Client, path: str, coding: str
) -> None:
    here, *_ = places = urls.split(",")
    coded = {**TEXT, "Content-Encoding": coding}
    make(client, here + path, TEXT, b"one")
    below = path.removeprefix("/v1/stream")
    for url in places:
        for method, target in (
            ("POST", path),
            ("PUT", path + "-new"),
            ("POST", below + "/append-batch"),
            ("PUT", f"{below}/snapshot/{0:016}_{0:016}"),
        ):
            answer = client.request(
                method, url + target, headers=coded, content=gzip.compress(b"two")
            )
            assert refused(answer) == (415, "UNSUPPORTED_CODING"), (method, target)
            assert answer.headers["accept-encoding"] == "identity"
        assert client.get(url + path).content == b"one"
        assert client.head(url + path + "-new").status_code == 404
        assert client.get(url + below + "/snapshot").status_code == 404
        plain = {**TEXT, "Content-Encoding": "identity"}
        assert client.post(url + path + "-plain", headers=plain, content=b"x").status_code == 404


def test_a_put_with_if_none_match_creates_a_stream_or_changes_nothing(
    urls: str, client: httpx.Client, path: str
) -> None:
    places = urls.split(",")
    only_new = {**TEXT, "If-None-Match": "*"}
    tag = make(client, places[0] + path, only_new, b"one").headers["etag"]
    for url in places:
        for headers in (only_new, {**only_new, **JSON}, {**TEXT, "If-None-Match": f'"x", {tag}'}):
            answer = client.put(url + path, headers=headers, content=b"1")
            assert refused(answer) == (412, "PRECONDITION_FAILED")
            assert answer.headers["etag"] == tag
        other = {**TEXT, "If-None-Match": '"x"'}
        assert client.put(url + path, headers=other).status_code == 200
        assert client.get(url + path).content == b"one"


@pytest.mark.parametrize("digits", [1, 15, 16, 17, 40, 256])
def test_a_cursor_is_never_answered_with_a_smaller_one(
    urls: str, client: httpx.Client, path: str, digits: int
) -> None:
    here, *_ = places = urls.split(",")
    make(client, here + path, TEXT, b"one")
    echoed = int("9" * digits)
    for url in places:
        read = f"{url}{path}?cursor={echoed}&offset="
        waited = client.get(read + "now&live=long-poll&timeout=0")
        assert int(waited.headers["stream-cursor"]) > echoed
        found = client.get(read + "-1&live=long-poll")
        assert int(found.headers["stream-cursor"]) > echoed
        with client.stream("GET", read + "-1&live=sse") as response:
            text = ""
            for piece in response.iter_text():
                text += piece
                if "upToDate" in text:
                    break
        controls = [json.loads(data) for kind, data in events(text.encode()) if kind == "control"]
        assert int(controls[0]["streamCursor"]) > echoed


def test_a_cursor_has_a_limit(urls: str, client: httpx.Client, path: str) -> None:
    here, *_ = urls.split(",")
    make(client, here + path, TEXT)
    for cursor in ("9" * 257, "9" * 5000, "x" * 257):
        answer = client.get(f"{here}{path}?offset=now&live=long-poll&timeout=0&cursor={cursor}")
        assert refused(answer) == (400, "INVALID_REQUEST")
    for cursor in ("", "soon", "-1", "1.5"):
        answer = client.get(f"{here}{path}?offset=now&live=long-poll&timeout=0&cursor={cursor}")
        assert 0 < int(answer.headers["stream-cursor"]) < 10**9


# -- forks ----------------------------------------------------------------------------------------


def test_a_fork_names_a_stream_of_this_host(urls: str, client: httpx.Client, path: str) -> None:
    here, *_ = places = urls.split(",")
    make(client, here + path, TEXT, b"one")
    for turn, url in enumerate(places):
        host = url.removeprefix("http://")
        port = host.partition(":")[2]
        for place, source in enumerate((path, url + path, f"https://{host}{path}")):
            fork = f"{path}-fork-{turn}-{place}"
            make(client, url + fork, {"Stream-Forked-From": source})
            assert client.get(url + fork).content == b"one"
        for source in (
            f"http://example.org{path}",
            f"http://example.org:{port}{path}",
            f"http://127.0.0.1{path}",
            f"http://user@{host}{path}",
            f"http://{path}",
            f"//{host}{path}",
            f"ftp://{host}{path}",
        ):
            answer = client.put(url + path + "-no", headers={"Stream-Forked-From": source})
            assert refused(answer) == (400, "INVALID_FORK"), source
        named = {"Host": "streams.example.org:8080"}
        for source in (f"http://STREAMS.example.org:8080{path}", path):
            fork = f"{path}-named-{turn}-{len(source)}"
            make(client, url + fork, {**named, "Stream-Forked-From": source})
        answer = client.put(url + path + "-no", headers={**named, "Stream-Forked-From": url + path})
        assert refused(answer) == (400, "INVALID_FORK")


# -- names ----------------------------------------------------------------------------------------


def test_every_listed_stream_can_be_reached_whatever_its_name(
    urls: str, client: httpx.Client
) -> None:
    here, *_ = places = urls.split(",")
    bucket = f"names-{uuid4()}"
    names = ("a/b", "a..b", "streams", "n" * 900, "é%2F?#[]", "!$&'()*+,;=:@-._~", ".", "a/./b")
    for name in names:
        quoted = "/".join("%2E" if part == "." else quote(part, "") for part in name.split("/"))
        make(client, f"{here}/v1/stream/{bucket}/{quoted}", TEXT, name.encode())
    longest = "!" * (1024 - len(f"/v1/stream/{bucket}/"))
    make(client, f"{here}/v1/stream/{bucket}/{longest}", TEXT, longest.encode())
    for url in places:
        listed = client.get(f"{url}/{bucket}/streams").json()["streams"]
        assert {stream["stream_id"] for stream in listed} == {*names, longest}
        for stream in listed:
            assert client.get(url + stream["path"]).text == stream["stream_id"]
    for stream in listed:
        assert client.delete(here + stream["path"]).status_code == 204
    assert client.delete(f"{here}/{bucket}").status_code == 204
