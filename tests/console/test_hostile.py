"""Names and contents that would run scripts, if the console took them for anything but text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from tests.console.consoles import WITH_ROOT, Cluster, Console

pytestmark = pytest.mark.long

HIT = "document.documentElement.dataset.hit=1"
PAYLOADS = [
    f"<script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f"<svg onload={HIT}>",
    f'"><svg><script>{HIT}</script>',
    f"'-{HIT}-'",
    f"javascript:{HIT}",
    f"${{{HIT}}}",
    f"<iframe srcdoc='<script>parent.{HIT}</script>'>",
    f"<a href='javascript:{HIT}'>x</a>",
    f"</title><script>{HIT}</script>",
    f"<math><mtext></p><style><img src=x onerror={HIT}>",
    "__proto__",
    "constructor",
]
# An object that a renderer may take for one of its own elements.
ELEMENT = {
    "type": "img", "props": {"src": "x", "onerror": HIT}, "__k": None, "constructor": None,
    "dangerouslySetInnerHTML": {"__html": PAYLOADS[1]},
}  # fmt: skip


@pytest.fixture(scope="module")
def unharmed(console: Console) -> Iterator[Console]:
    yield console
    assert console.page.evaluate("document.documentElement.dataset.hit ?? ''") == ""


def put(cluster: Cluster, path: str, content_type: str, content: str = "") -> None:
    headers = {**WITH_ROOT, "Content-Type": content_type}
    answer = httpx.put(cluster.url + path, headers=headers, content=content.encode(), timeout=20)
    assert answer.status_code in (200, 201), (path, answer.text)


def assert_only_text(console: Console) -> None:
    """Nothing in the page came from a name or a content but text."""
    foreign = (
        "main :is(script, img, svg, iframe, style, math, title), main [onerror], main [onload]"
    )
    assert console.page.evaluate(f"document.querySelectorAll({json.dumps(foreign)}).length") == 0
    hrefs = "[...document.querySelectorAll('a')].map((each) => each.getAttribute('href'))"
    assert all(href.startswith("#/") or href == "#main" for href in console.page.evaluate(hrefs))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_name_is_text(cluster: Cluster, unharmed: Console, payload: str) -> None:
    console = unharmed
    bucket, name = payload.replace("/", "|"), payload.replace("/", "|")
    put(
        cluster,
        f"/v1/stream/{quote(bucket, safe='')}/{quote(name, safe='')}",
        "text/plain",
        payload,
    )
    console.go("buckets", prefix=bucket)
    console.sees("td a", bucket)
    assert_only_text(console)
    console.page.click("td a")
    console.sees("h1", bucket)
    console.sees("td a", name)
    assert_only_text(console)
    console.page.click("td a")
    console.sees("h1", name)
    console.page.wait(".records pre", [payload])
    console.press("Delete")
    console.sees("dialog label b", f"{bucket}/{name}")
    assert_only_text(console)
    console.page.press("Escape")
    console.misses("dialog")


def test_a_content_type_is_text(cluster: Cluster, unharmed: Console) -> None:
    content_type = f'text/html; x="<img src=x onerror={HIT}>"'
    put(cluster, "/v1/stream/hostile/typed", content_type, PAYLOADS[0])
    unharmed.go("stream", "hostile", "typed")
    unharmed.sees("dd", content_type)
    unharmed.page.wait(".records pre", [PAYLOADS[0]])
    assert_only_text(unharmed)


def test_messages_are_text(cluster: Cluster, unharmed: Console) -> None:
    rows = [
        {
            "type": one,
            "key": one,
            "value": {one: one, "x": ELEMENT},
            "headers": {"operation": "insert"},
        }
        for one in PAYLOADS
    ]
    put(
        cluster,
        "/v1/stream/hostile/json",
        "application/json",
        json.dumps([*PAYLOADS, ELEMENT, *rows]),
    )
    unharmed.go("stream", "hostile", "json")
    unharmed.sees(".json", PAYLOADS[1])
    assert_only_text(unharmed)
    unharmed.go("stream", "hostile", "json", view="tables")
    unharmed.sees("main h2", PAYLOADS[1])
    unharmed.sees("td", PAYLOADS[1])
    assert_only_text(unharmed)


def test_live_events_are_text(cluster: Cluster, unharmed: Console) -> None:
    with cluster.client() as client:
        stream = client.stream("hostile/live")
        stream.create("text/html")
        unharmed.go("stream", "hostile", "live", view="tail")
        unharmed.sees("[role=status]", "live")
        for payload in PAYLOADS:
            stream.append(payload)
            unharmed.sees(".records pre", payload)
    assert_only_text(unharmed)


def test_a_subscription_is_text(cluster: Cluster, unharmed: Console) -> None:
    names = [f"hostile/{payload.replace('/', '|')}" for payload in PAYLOADS]
    body = {
        "type": "pull-wake",
        "pattern": names[1],
        "streams": names,
        "wake_stream": f"wakes/{PAYLOADS[0].replace('/', '|')}",
        "description": PAYLOADS[0],
    }
    name = PAYLOADS[1]
    at = f"{cluster.url}/v1/stream/__ds/subscriptions/{quote(name, safe='')}"
    httpx.put(at, headers=WITH_ROOT, json=body, timeout=20).raise_for_status()
    claim = {"worker": PAYLOADS[1]}
    httpx.post(f"{at}/test", headers=WITH_ROOT, json={}, timeout=20).raise_for_status()
    httpx.post(f"{at}/claim", headers=WITH_ROOT, json=claim, timeout=20).raise_for_status()
    unharmed.go("subscriptions")
    unharmed.sees("td code", names[1])
    assert_only_text(unharmed)
    unharmed.page.click("td a")
    unharmed.sees("h1", name)
    unharmed.sees("dd", PAYLOADS[0])
    unharmed.sees("dd", PAYLOADS[1])
    unharmed.sees("td a", names[2])
    assert_only_text(unharmed)
    unharmed.press("Delete")
    unharmed.sees("dialog label b", name)
    assert_only_text(unharmed)
    unharmed.answer(name)
    unharmed.page.until("location.hash === '#/subscriptions'")


@pytest.mark.parametrize("payload", PAYLOADS)
def test_an_address_is_text(unharmed: Console, payload: str) -> None:
    for page in ("stream", "bucket", "buckets", "operation", "subscription", payload):
        unharmed.go(
            page, payload, payload, prefix=payload, offset=payload, form=payload, view=payload
        )
        unharmed.sees("main", "")
        assert_only_text(unharmed)
    unharmed.sees("h1", "There is no such page")
