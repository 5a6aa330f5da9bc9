"""Rules of the protocol over HTTP that the upstream conformance suite does not test."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from streamd.http.router import find
from streamd.streams.content import MAX_MESSAGES, SMALL_BYTES, Records, split_body
from tests.http.serving import serving

TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
STREAM = "/v1/stream/s"
NUMBERS = "/v1/stream/numbers"
CLOSED = "/v1/stream/closed"
PRODUCER = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "0"}


async def prepare(client: httpx.AsyncClient) -> None:
    """A text stream with one record, a JSON stream, a closed stream, a bucket."""
    for path, headers in (
        (STREAM, TEXT),
        (NUMBERS, JSON),
        (CLOSED, {**TEXT, "Stream-Closed": "true"}),
        ("/bucket", {}),
    ):
        assert (await client.put(path, headers=headers)).status_code == 201
    await client.post(STREAM, content=b"one", headers={**TEXT, "Stream-Seq": "5"})


class Fault(NamedTuple):
    """A request that is answered with an error."""

    method: str
    path: str
    status: int
    code: str
    headers: Mapping[str, str] = {}
    body: bytes = b""


FAULTS = [
    Fault("GET", "/v1/stream/none", 404, "STREAM_NOT_FOUND"),
    Fault("HEAD", "/v1/stream/none", 404, "STREAM_NOT_FOUND"),
    Fault("DELETE", "/v1/stream/none", 404, "STREAM_NOT_FOUND"),
    Fault("POST", "/v1/stream/none", 404, "STREAM_NOT_FOUND", TEXT, b"x"),
    Fault("GET", "/v1/stream/none?offset=-1&live=sse", 404, "STREAM_NOT_FOUND"),
    Fault("GET", "/v1/stream/none?offset=-1&live=long-poll", 404, "STREAM_NOT_FOUND"),
    Fault("PATCH", STREAM, 405, "METHOD_NOT_ALLOWED"),
    Fault("QUERY", STREAM, 405, "METHOD_NOT_ALLOWED"),
    Fault("PATCH", "/bucket", 405, "METHOD_NOT_ALLOWED"),
    Fault("POST", "/bucket", 405, "METHOD_NOT_ALLOWED"),
    Fault("PATCH", "/bucket/streams", 405, "METHOD_NOT_ALLOWED"),
    Fault("PUT", "/bucket/s/append-batch", 405, "METHOD_NOT_ALLOWED"),
    Fault("POST", "/healthz", 405, "METHOD_NOT_ALLOWED"),
    Fault("POST", STREAM, 400, "EMPTY_BODY", TEXT),
    Fault("POST", STREAM, 400, "MISSING_CONTENT_TYPE", {}, b"x"),
    Fault("POST", STREAM, 400, "INVALID_CONTENT_TYPE", {"Content-Type": "text"}, b"x"),
    Fault("POST", STREAM, 409, "CONTENT_TYPE_MISMATCH", JSON, b"1"),
    Fault("POST", STREAM, 409, "SEQUENCE_CONFLICT", {**TEXT, "Stream-Seq": "5"}, b"x"),
    Fault("POST", STREAM, 400, "INVALID_REQUEST", {**TEXT, "Stream-Seq": ""}, b"x"),
    Fault("POST", STREAM, 400, "INVALID_REQUEST", {**TEXT, "Stream-Seq": "5" * 257}, b"x"),
    Fault("POST", STREAM, 400, "INVALID_PRODUCER", {**TEXT, "Producer-Id": "p"}, b"x"),
    Fault("POST", STREAM, 400, "INVALID_PRODUCER", {**TEXT, **PRODUCER, "Producer-Id": ""}, b"x"),
    Fault("POST", STREAM, 400, "INVALID_REQUEST", {**TEXT, **PRODUCER, "Producer-Seq": "01"}, b"x"),
    Fault("POST", STREAM, 409, "SEQUENCE_GAP", {**TEXT, **PRODUCER, "Producer-Seq": "7"}, b"x"),
    Fault("POST", CLOSED, 409, "STREAM_CLOSED", TEXT, b"x"),
    Fault("POST", NUMBERS, 400, "INVALID_JSON", JSON, b"{"),
    Fault("POST", NUMBERS, 400, "INVALID_JSON", JSON, b"1 2"),
    Fault("POST", NUMBERS, 400, "INVALID_JSON", JSON, b"[1,]"),
    Fault("POST", NUMBERS, 400, "INVALID_JSON", JSON, b"NaN"),
    Fault("POST", NUMBERS, 400, "INVALID_JSON", JSON, b'"\xff"'),
    Fault("POST", NUMBERS, 400, "INVALID_JSON", JSON, b"[" * 100_000),
    Fault("POST", NUMBERS, 400, "EMPTY_BODY", JSON, b" [ ] "),
    Fault("POST", NUMBERS, 400, "TOO_MANY_MESSAGES", JSON, b"[" + b"1," * MAX_MESSAGES + b"1]"),
    Fault("PUT", NUMBERS, 409, "STREAM_EXISTS", TEXT),
    Fault("PUT", "/v1/stream/new", 400, "INVALID_JSON", JSON, b"nope"),
    Fault("PUT", "/v1/stream/new", 400, "INVALID_REQUEST", {"Stream-TTL": "1.5"}),
    Fault("PUT", "/v1/stream/new", 400, "INVALID_REQUEST", {"Stream-TTL": "-1"}),
    Fault("PUT", "/v1/stream/new", 400, "INVALID_REQUEST", {"Stream-Expires-At": "tomorrow"}),
    Fault("GET", STREAM + "?offset=5", 400, "INVALID_OFFSET"),
    Fault("GET", STREAM + "?offset=", 400, "INVALID_OFFSET"),
    Fault("GET", STREAM + f"?offset={1:016}_{2:016}", 400, "INVALID_OFFSET"),
    Fault("GET", STREAM + f"?offset={1:016}_{2:016}&live=sse", 400, "INVALID_OFFSET"),
    Fault("GET", STREAM + f"?offset={1:016}_{2:016}&live=long-poll", 400, "INVALID_OFFSET"),
    Fault("GET", STREAM + "?live=sse", 400, "INVALID_OFFSET"),
    Fault("GET", STREAM + "?offset=-1&live=yes", 400, "INVALID_REQUEST"),
    Fault("GET", STREAM + "?offset=-1&offset=-1", 400, "INVALID_REQUEST"),
    Fault("GET", STREAM + "?offset=-1&live=long-poll&timeout=x", 400, "INVALID_REQUEST"),
    Fault("GET", STREAM + "?offset=-1&live=long-poll&timeout=-1", 400, "INVALID_REQUEST"),
    Fault("GET", STREAM + "?max_bytes=many", 400, "INVALID_REQUEST"),
    Fault("GET", STREAM + "?consistency=some", 400, "INVALID_REQUEST"),
    Fault("PUT", "/v1/stream/a//b", 400, "INVALID_PATH"),
    Fault("PUT", "/v1/stream/a%0Ab", 400, "INVALID_PATH"),
    Fault("PUT", "/v1/stream/a%5Cb", 400, "INVALID_PATH"),
    Fault("PUT", "/v1/stream/a%FF", 400, "INVALID_PATH"),
    Fault("PUT", "/v1/stream/" + "a" * 1014, 400, "INVALID_PATH"),
    Fault("GET", "/v1/stream/__ds/x", 404, "NOT_FOUND"),
    Fault("GET", "/nowhere/at/all", 404, "NOT_FOUND"),
    Fault("GET", "/v1/other", 404, "NOT_FOUND"),
    Fault("GET", "/cluster/other", 404, "NOT_FOUND"),
    Fault("PUT", "/bucket", 409, "BUCKET_EXISTS"),
    Fault("PUT", "/nowhere/s", 404, "BUCKET_NOT_FOUND"),
    Fault("PUT", "/abc", 400, "INVALID_BUCKET_ID"),
    Fault("PUT", "/" + "a" * 65, 400, "INVALID_BUCKET_ID"),
    Fault("PUT", "/Bucket", 400, "INVALID_BUCKET_ID"),
    Fault("PUT", "/buck.et", 400, "INVALID_BUCKET_ID"),
    Fault("PUT", "/_default", 400, "INVALID_BUCKET_ID"),
    Fault("PUT", "/__ds", 400, "INVALID_BUCKET_ID"),
    Fault("PUT", "/admin", 400, "INVALID_BUCKET_ID"),
    Fault("PUT", "/admin/s", 400, "INVALID_BUCKET_ID"),
    Fault("PUT", "/bucket/", 400, "INVALID_STREAM_ID"),
    Fault("PUT", "/bucket/streams", 400, "INVALID_STREAM_ID"),
    Fault("PUT", "/bucket/a%2Fb", 400, "INVALID_STREAM_ID"),
    Fault("PUT", "/bucket/a..b", 400, "INVALID_STREAM_ID"),
    Fault("PUT", "/bucket/" + "a" * 116, 400, "INVALID_STREAM_ID"),
    Fault("PUT", "/bucket/" + "%C3%A9" * 58, 400, "INVALID_STREAM_ID"),
    Fault("PUT", "/bucket/a/b", 404, "NOT_FOUND"),
]

FORK_FAULTS = [
    Fault("PUT", "/v1/stream/f", status, code, headers)
    for status, code, headers in (
        (400, "INVALID_FORK", {"Stream-Fork-Offset": "-1"}),
        (400, "INVALID_FORK", {"Stream-Fork-Sub-Offset": "1"}),
        (400, "INVALID_FORK", {"Stream-Forked-From": "nonsense"}),
        (400, "INVALID_FORK", {"Stream-Forked-From": "/healthz"}),
        (400, "INVALID_FORK", {"Stream-Forked-From": "/v1/stream/a/../s"}),
        (400, "INVALID_FORK", {"Stream-Forked-From": "/v1/stream/bucket%2Fs"}),
        (400, "INVALID_FORK", {"Stream-Forked-From": "http://x/v1/stream/bucket%2fs"}),
        (400, "INVALID_FORK", {"Stream-Forked-From": "http://[::1" + STREAM}),
        (404, "STREAM_NOT_FOUND", {"Stream-Forked-From": "/v1/stream/none"}),
        (400, "INVALID_OFFSET", {"Stream-Forked-From": STREAM, "Stream-Fork-Offset": "x"}),
        (
            400,
            "INVALID_OFFSET",
            {"Stream-Forked-From": STREAM, "Stream-Fork-Offset": f"{9:016}_{9:016}"},
        ),
        (400, "INVALID_REQUEST", {"Stream-Forked-From": STREAM, "Stream-Fork-Sub-Offset": "-1"}),
        (400, "INVALID_OFFSET", {"Stream-Forked-From": STREAM, "Stream-Fork-Sub-Offset": "99"}),
        (409, "CONTENT_TYPE_MISMATCH", {"Stream-Forked-From": STREAM, **JSON}),
    )
]


def assert_safe_for_browsers(response: httpx.Response) -> None:
    headers = response.headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "sandbox"
    assert "date" in headers
    path = response.url.raw_path.partition(b"?")[0]
    if find(path).resource.is_guarded:
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("access-control-")]
        return
    assert headers["cross-origin-resource-policy"] == "cross-origin"
    assert headers["access-control-allow-origin"] == "*"
    assert headers["access-control-expose-headers"] == "*"


# -- errors ---------------------------------------------------------------------------------------


async def test_every_error_has_its_status_its_code_and_one_shape(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await prepare(client)
        for fault in FAULTS + FORK_FAULTS:
            response = await client.request(
                fault.method, fault.path, headers=dict(fault.headers), content=fault.body
            )
            assert response.status_code == fault.status, (fault, response.text)
            assert response.headers["content-type"] == "application/json", fault
            assert_safe_for_browsers(response)
            if fault.method == "HEAD":
                assert response.content == b""
                continue
            error = response.json()
            assert set(error) == {"error"}, fault
            assert set(error["error"]) == {"code", "message"}, fault
            assert error["error"]["code"] == fault.code, (fault, error)
            assert error["error"]["message"], fault
        assert server.node.group.state.header.streams == 3, "not one of them made a stream"
        assert await server.content(STREAM) == b"one"


async def test_protocol_errors_are_not_cacheable(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await prepare(client)
        for path in ("/v1/stream/none", STREAM + "?offset=x", "/nowhere"):
            assert (await client.get(path)).headers["cache-control"] == "no-store"


async def test_405_lists_the_allowed_methods(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for path, allowed in (
            (STREAM, "GET, HEAD, POST, PUT, DELETE, OPTIONS"),
            ("/bucket", "GET, HEAD, PUT, DELETE, OPTIONS"),
            ("/bucket/streams", "GET, HEAD, OPTIONS"),
            ("/bucket/s/append-batch", "POST, OPTIONS"),
        ):
            assert (await client.patch(path)).headers["allow"] == allowed
        ops = (await client.post("/healthz")).headers["allow"].split(", ")
        assert set(ops) == {"GET", "HEAD", "OPTIONS"}


async def test_a_read_that_says_it_is_not_live_is_like_any_other(tmp_path: Path) -> None:
    """Other people's clients send it, and the reference server takes it."""
    async with serving(tmp_path) as server, server.client() as client:
        await client.put(STREAM, headers=TEXT, content=b"hello")
        for query in ("live=false", "offset=-1&live=false"):
            answer = await client.get(f"{STREAM}?{query}")
            assert (answer.status_code, answer.content) == (200, b"hello")
            assert answer.headers["stream-up-to-date"] == "true"


# -- browsers -------------------------------------------------------------------------------------


async def test_every_response_is_safe_for_browsers(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await prepare(client)
        etag = (await client.get(STREAM)).headers["etag"]
        for response in (
            await client.put("/v1/stream/new"),
            await client.put("/v1/stream/new"),
            await client.post(STREAM, content=b"two", headers=TEXT),
            await client.head(STREAM),
            await client.get(STREAM),
            await client.get(STREAM, headers={"If-None-Match": etag}),
            await client.get(STREAM + "?offset=now&live=long-poll&timeout=0"),
            await client.get(CLOSED + "?offset=-1&live=sse"),
            await client.delete("/v1/stream/new"),
            await client.put("/other-bucket"),
            await client.get("/healthz"),
            await client.get("/metrics"),
            await client.options(STREAM),
        ):
            assert response.status_code < 400
            assert_safe_for_browsers(response)


async def test_preflights_allow_the_methods_and_headers_of_the_protocol(tmp_path: Path) -> None:
    asked = {
        "Origin": "https://example.org",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type, producer-id",
    }
    async with serving(tmp_path) as server, server.client() as client:
        response = await client.options(STREAM, headers=asked)
        assert response.status_code == 204
        assert "content-length" not in response.headers
        assert int(response.headers["access-control-max-age"]) > 0
        methods = set(response.headers["access-control-allow-methods"].split(", "))
        assert methods == {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"}
        allowed = set(response.headers["access-control-allow-headers"].lower().split(", "))
        assert allowed >= {
            "content-type", "authorization", "if-none-match", "stream-seq", "stream-ttl",
            "stream-expires-at", "stream-closed", "stream-forked-from", "stream-fork-offset",
            "stream-fork-sub-offset", "producer-id", "producer-epoch", "producer-seq",
        }  # fmt: skip
        assert (await client.options("/bucket")).headers["allow"].startswith("GET, HEAD, PUT")
        assert (await client.options("/v1/stream/none")).status_code == 204


# -- caching --------------------------------------------------------------------------------------


async def test_an_etag_names_a_range_until_the_range_grows_or_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await prepare(client)
        seen = set()
        for change in (
            {"content": b"two", "headers": TEXT},
            {"headers": {"Stream-Closed": "true"}},
        ):
            etag = (await client.get(STREAM)).headers["etag"]
            seen.add(etag)
            unchanged = await client.get(STREAM, headers={"If-None-Match": etag})
            assert (unchanged.status_code, unchanged.content) == (304, b"")
            assert unchanged.headers["etag"] == etag
            assert "content-length" not in unchanged.headers
            assert unchanged.headers["cache-control"].startswith("public")
            await client.post(STREAM, **change)
            assert (await client.get(STREAM, headers={"If-None-Match": etag})).status_code == 200
        seen.add((await client.get(STREAM)).headers["etag"])
        assert len(seen) == 3
        assert (await client.head(STREAM)).headers["etag"] in seen


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ("{}", 304),
        ("W/{}", 304),
        ("*", 304),
        ('"other", {}', 304),
        ('"other" , W/{},"more"', 304),
        ('"other"', 200),
        ('W/"other", "more"', 200),
        ("", 200),
    ],
)
async def test_if_none_match(form: str, status: int, tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await prepare(client)
        etag = (await client.get(STREAM)).headers["etag"]
        response = await client.get(STREAM, headers={"If-None-Match": form.format(etag)})
        assert response.status_code == status


async def test_only_bytes_that_never_change_may_be_cached(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await prepare(client)
        tail = await server.tail(STREAM)
        for_a_minute = "public, max-age=60, stale-while-revalidate=300"
        for path, caching in (
            (STREAM, for_a_minute),
            (STREAM + f"?offset={tail}", "no-store"),
            (STREAM + "?offset=now", "no-store"),
            (NUMBERS, "no-store"),
            (STREAM + "?offset=-1&live=long-poll", for_a_minute),
            (STREAM + "?offset=now&live=long-poll&timeout=0", "no-store"),
            (CLOSED + "?offset=now&live=long-poll", "no-store"),
            (CLOSED + "?offset=-1&live=sse", "no-cache"),
        ):
            assert (await client.get(path)).headers["cache-control"] == caching, path
        assert (await client.head(STREAM)).headers["cache-control"] == "no-store"


async def test_no_cache_keeps_bytes_past_their_expiry(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        for ttl, most in ((20, 20), (1000, 60)):
            path = f"/v1/stream/ttl-{ttl}"
            await client.put(path, content=b"x", headers={**TEXT, "Stream-TTL": str(ttl)})
            caching = (await client.get(path)).headers["cache-control"]
            assert caching in (f"public, max-age={most}", f"public, max-age={most - 1}")


# -- expiry ---------------------------------------------------------------------------------------


async def test_a_stream_that_expires_before_1970_is_created_and_expired(tmp_path: Path) -> None:
    for _ in range(2):  # the second time from the log of the first
        async with serving(tmp_path) as server, server.client() as client:
            end = {"Stream-Expires-At": "1969-12-31T23:59:59Z"}
            assert (await client.put("/v1/stream/old", headers=end)).status_code == 201
            assert (await client.get("/v1/stream/old")).status_code == 404


async def test_an_expired_stream_is_not_found(tmp_path: Path) -> None:
    in_a_minute = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
    async with serving(tmp_path) as server, server.client() as client:
        for name, headers in (
            ("ttl", {"Stream-TTL": "60"}),
            ("read", {"Stream-TTL": "60"}),
            ("at", {"Stream-Expires-At": in_a_minute}),
        ):
            await client.put(f"/v1/stream/{name}", content=b"x", headers={**TEXT, **headers})
        server.clock.ahead_ms += 50_000
        assert (await client.get("/v1/stream/read")).status_code == 200, "which renews it"
        for name in ("ttl", "at"):
            assert (await client.head(f"/v1/stream/{name}")).status_code == 200
        server.clock.ahead_ms += 15_000
        assert (await client.get("/v1/stream/read")).status_code == 200
        for name in ("ttl", "at"):
            for method in ("GET", "HEAD", "POST", "DELETE"):
                body = b"y" if method == "POST" else b""
                response = await client.request(
                    method, f"/v1/stream/{name}", content=body, headers=TEXT
                )
                assert response.status_code == 404, (name, method)
            made = await client.put(f"/v1/stream/{name}", headers=TEXT)
            assert made.status_code == 201, "the name is free again"


# -- addresses ------------------------------------------------------------------------------------


async def test_a_bucket_is_created_once_and_then_holds_streams(tmp_path: Path) -> None:
    longest = "/bucket/" + "a" * 115
    async with serving(tmp_path) as server, server.client() as client:
        made = await client.put("/bucket")
        assert (made.status_code, made.headers["location"]) == (201, f"{server.url}/bucket")
        assert (await client.put("/bucket")).status_code == 409
        for path in ("/bucket/s", longest, "/bucket/%C3%A9.x~", "/bucket/stream"):
            made = await client.put(path, headers=TEXT)
            assert (made.status_code, made.headers["location"]) == (201, server.url + path)
            assert (await client.post(path, content=b"x", headers=TEXT)).status_code == 204
            assert await server.content(path) == b"x"


async def test_both_addresses_of_a_stream_lead_to_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put("/v1/stream/implied/s", headers=TEXT)
        assert (await client.put("/implied")).status_code == 409, "made along with the stream"
        assert (await client.put("/implied/other")).status_code == 201
        await client.post("/implied/s", content=b"x", headers=TEXT)
        assert await server.content("/v1/stream/implied/s") == b"x"
        assert (await client.get("/v1/stream/s")).status_code == 404


async def test_a_large_json_body_is_split_outside_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splitting millions of messages takes seconds, and a leader must be heard meanwhile."""
    cut_in: list[int] = []

    def split_and_tell(content_type: str, body: bytes) -> Records:
        cut_in.append(threading.get_ident())
        return split_body(content_type, body)

    monkeypatch.setattr("streamd.http.streams.writes.split_body", split_and_tell)
    body = b"[" + b"1," * SMALL_BYTES + b"1]"
    async with serving(tmp_path) as server, server.client() as client:
        assert (await client.put("/v1/stream/a", content=body, headers=JSON)).status_code == 201
        assert (await client.post("/v1/stream/a", content=body, headers=JSON)).status_code == 204
        refused = await client.post("/v1/stream/a", content=body[:-1], headers=JSON)
        assert refused.json()["error"]["code"] == "INVALID_JSON"
        assert len(cut_in) == 3
        assert threading.get_ident() not in cut_in
        assert await server.content("/v1/stream/a") == body[:-1] + b"," + body[1:]


@pytest.mark.parametrize(
    ("made", "asked", "differs"),
    [
        ({}, {"Content-Type": "application/json"}, "its Content-Type is text/plain"),
        ({}, {"Stream-Closed": "true"}, "it is open"),
        ({"Stream-Closed": "true"}, {}, "it is closed"),
        ({}, {"Stream-TTL": "60"}, "its Stream-TTL, Stream-Expires-At, Write-Fence or the fork"),
        ({"Content-Type": "application/json"}, {"Content-Type": ""}, "its Content-Type is app"),
    ],
)
async def test_the_refusal_of_a_put_for_another_stream_says_what_differs(
    made: dict[str, str], asked: dict[str, str], differs: str, tmp_path: Path
) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        text = {"Content-Type": "text/plain"}
        assert (await client.put("/v1/stream/s", headers={**text, **made})).status_code == 201
        headers = {name: value for name, value in {**text, **asked}.items() if value}
        error = (await client.put("/v1/stream/s", headers=headers)).json()["error"]
        assert error["code"] == "STREAM_EXISTS"
        assert error["message"].startswith(
            f"the stream exists with another configuration: {differs}"
        )
