"""How the pages look: pictures of each, in both themes and two widths, and no violation that axe
finds. The pictures are left in ``build/console``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import httpx
import pytest

from tests.console.consoles import WITH_ROOT, Cluster, Console

pytestmark = pytest.mark.long

ROOT_DIRECTORY = Path(__file__).parents[2]
PICTURES = ROOT_DIRECTORY / "build" / "console"
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
WIDTHS = {"wide": (1280, 800), "narrow": (360, 740)}


class Shown(NamedTuple):
    """A page, and something that is there once it is complete."""

    name: str
    address: tuple[str, ...]
    selector: str
    options: Mapping[str, str] = MappingProxyType({})


PAGES = [
    Shown("overview", ("overview",), ".scroll ~ * .chart canvas"),
    Shown("buckets", ("buckets",), "td a"),
    Shown("bucket", ("bucket", "agents"), "td a"),
    Shown("records", ("stream", "agents", "run-1"), ".records .json"),
    Shown("hex", ("stream", "agents", "run-1"), ".records pre", {"form": "hex"}),
    Shown("live", ("stream", "agents", "run-1"), "[role=status] .good", {"view": "tail"}),
    Shown("tables", ("stream", "agents", "run-1"), "td", {"view": "tables"}),
    Shown("subscriptions", ("subscriptions",), "td a"),
    Shown("subscription", ("subscription", "auditors"), "td a"),
    Shown("tokens", ("tokens",), "td"),
    Shown("limits", ("limits",), "td"),
    Shown("cold", ("cold",), "td"),
    Shown("operations", ("operations",), "td a"),
    Shown("operation", ("operation", "1"), ".steps"),
    Shown("audit", ("audit",), "td"),
]


@pytest.fixture(scope="module")
def furnished(cluster: Cluster, console: Console) -> Console:
    """A console with something on each page."""
    messages = [
        {
            "type": "step",
            "key": str(number),
            "value": {"tool": "search", "tokens": 40 + number, "cached": number % 2 == 0},
            "headers": {"operation": "insert"},
        }
        for number in range(4)
    ]
    with cluster.client() as client:
        for number in range(1, 13):
            stream = client.stream(f"agents/run-{number}")
            stream.create("application/json")
            stream.append_json(*messages)
        client.stream("chats/general").create("text/plain")
        client.stream("wakes/auditors").create("application/json")
    subscription = {
        "type": "pull-wake",
        "wake_stream": "wakes/auditors",
        "streams": ["agents/run-1", "agents/run-2", "chats/general"],
        "description": "checks what agents did",
    }
    at = "/v1/stream/__ds/subscriptions/auditors"
    httpx.put(cluster.url + at, headers=WITH_ROOT, json=subscription).raise_for_status()
    with cluster.client() as client:
        client.stream("agents/run-1").append_json(messages[0])
    cluster.token("reader", "read:agents/*", "list:agents/*")
    url, limits = cluster.url, {"requests_per_s": 1000, "max_streams": 100_000}
    httpx.put(f"{url}/cluster/limits/buckets/agents", headers=WITH_ROOT, json=limits)
    leader = cluster.processes.leader().node_id
    begun = httpx.post(
        f"{url}/cluster/operations",
        headers=WITH_ROOT,
        json={"kind": "drain", "node_id": leader},
        timeout=20,
    )
    assert begun.status_code == 201, begun.text
    return console


def go(console: Console, shown: Shown) -> None:
    console.go(*shown.address, **shown.options)
    console.page.until(f"document.querySelector({json.dumps(f'main {shown.selector}')}) !== null")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("shown", PAGES, ids=[page.name for page in PAGES])
def test_a_page_is_accessible_and_fits(
    furnished: Console, shown: Shown, width: str, theme: str
) -> None:
    console = furnished
    console.page.prefer("prefers-color-scheme", theme)
    console.page.resize(*WIDTHS[width])
    go(console, shown)
    PICTURES.mkdir(parents=True, exist_ok=True)
    console.page.screenshot(PICTURES / f"{shown.name}-{width}-{theme}.png")
    assert console.page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width][0]
    assert violations(console) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("page", "button"),
    [
        ("subscriptions", "Create a subscription"),
        ("tokens", "Create a token"),
        ("limits", "Set limits"),
        ("operations", "Begin one"),
    ],
)
def test_a_dialog_is_accessible(furnished: Console, page: str, button: str, theme: str) -> None:
    furnished.page.prefer("prefers-color-scheme", theme)
    furnished.go(page)
    furnished.press(button)
    furnished.sees("dialog", "")
    furnished.page.screenshot(PICTURES / f"dialog-{page}-{theme}.png")
    assert violations(furnished) == []
    furnished.page.press("Escape")
    furnished.misses("dialog")


def violations(console: Console) -> list[str]:
    """What axe finds, with the elements that it finds it in."""
    console.page.include(AXE)
    found = console.page.evaluate("""axe.run(document, {resultTypes: ["violations"]}).then(
        ({violations}) =>
            violations.map(({id, nodes}) => `${id}: ${nodes.map(({html}) => html).join(" ")}`)
    )""")
    return list(found)
