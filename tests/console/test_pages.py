"""Every page and action of the console, in Chromium, against three nodes with a cold store."""

from __future__ import annotations

import httpx
import pytest

from tests.console.consoles import WITH_ROOT, Cluster, Console
from tests.http.authorized import ROOT
from tests.jepsen_like.cluster_processes import wait_until

pytestmark = pytest.mark.long


def test_a_browser_is_led_to_the_console_and_asked_for_a_token(
    cluster: Cluster, console: Console
) -> None:
    console.page.open("about:blank")
    console.page.open(f"{cluster.url}/")
    assert console.page.evaluate("location.pathname") == "/console"
    console.page.enter("input[name=token]", "sd_0123456789abcdef_" + "a" * 32)
    console.sees("[role=alert]", "INVALID_TOKEN")
    console.open()
    everywhere = "JSON.stringify([location.href, {...localStorage}, {...sessionStorage}])"
    assert ROOT not in console.page.evaluate(everywhere)
    console.page.reload()
    console.sees("main", "Token")


def test_a_token_is_kept_for_the_tab_if_asked(cluster: Cluster, console: Console) -> None:
    console.page.open(f"{cluster.url}/console")
    console.page.click("input[name=keep]")
    console.page.enter("input[name=token]", ROOT)
    console.sees("h1", "Overview")
    console.page.reload()
    console.sees("h1", "Overview")
    console.page.click('::-p-aria([name="Sign out"][role="button"])')
    console.sees("main", "Token")
    console.page.reload()
    console.sees("main", "Token")
    console.open()


def test_the_overview_shows_the_nodes_and_the_last_hour(cluster: Cluster, console: Console) -> None:
    console.go("overview")
    console.sees("main", "No alarms")
    leader = cluster.processes.leader().node_id
    console.sees("dd", f"node {leader}")
    console.page.until("document.querySelectorAll('tbody tr').length === 3")
    console.page.until("document.querySelectorAll('.chart canvas').length === 8")


def test_a_stream_from_its_creation_to_its_end(cluster: Cluster, console: Console) -> None:
    console.go("buckets")
    console.press("Create a bucket")
    console.answer(name="shop")
    console.sees("td", "shop")
    console.go("bucket", "shop")
    console.sees("main", "There is no stream here")
    console.press("Create a stream")
    console.answer(name="orders", type="application/json")
    console.sees("h1", "orders")

    console.press("Append")
    console.answer(content='[{"id": 1, "who": {"name": "Ada"}}, {"id": 2}]')
    console.page.wait(".records .json-string", ['"Ada"'])
    console.go("stream", "shop", "orders", form="hex")
    console.sees("pre", "7b 22 69 64")
    console.go("stream", "shop", "orders", record="1")
    console.page.wait(".records > li header a", ["1"])

    console.press("Fork")
    console.answer(name="shop/copy")
    console.sees("h1", "copy")
    console.sees(".lineage", "shop/orders")
    console.go("stream", "shop", "orders")
    console.sees(".lineage", "1 fork")

    console.press("Publish a snapshot")
    console.answer("shop/orders", content="{}")
    console.sees("main", "A snapshot took the place")
    console.press("Close")
    console.answer("shop/orders")
    console.sees("header.title", "closed")
    assert not {"Append", "Close"} & set(console.buttons())
    console.press("Delete")
    console.answer("shop/orders")
    console.page.until("location.hash === '#/bucket/shop'")
    console.page.wait("td a", ["copy"])
    with cluster.client() as client:
        assert client.stream("shop/copy").head().next_offset.endswith("_0000000000000044")


def test_a_live_tail_is_paused_and_filtered(cluster: Cluster, console: Console) -> None:
    with cluster.client() as client:
        stream = client.stream("lives/tail")
        stream.create("text/plain")
        stream.append("before")
        console.go("stream", "lives", "tail", view="tail")
        console.sees("[role=status]", "live")
        stream.append("apple")
        console.page.wait(".records pre", ["apple"])
        console.press("Pause")
        stream.append("pear")
        stream.append("plum")
        console.sees("[role=status]", "paused")
        assert console.page.text(".records pre") == "apple"
        console.press("Go on")
        console.sees(".records pre", "plum")
        console.page.type(".toolbar label input", "app")
        console.page.wait(".records pre", ["apple"])


# Notes each request, and whether it sends a token.
WATCH = """
    window.requests = []
    const before = window.fetch
    window.fetch = (url, sending) => {
        window.requests.push([String(url), sending.headers.has("Authorization")])
        return before(url, sending)
    }
"""


def test_a_live_tail_is_read_by_a_signed_url_until_the_token_ends(
    cluster: Cluster, console: Console
) -> None:
    with cluster.client() as client:
        client.stream("lives/signed").create("text/plain")
        token = cluster.token("follower", "read:lives/*", "list:lives/*")
        console.open(token)
        console.page.evaluate(WATCH)
        console.go("stream", "lives", "signed", view="tail")
        console.sees("[role=status]", "live")
        client.stream("lives/signed").append("apple")
        console.page.wait(".records pre", ["apple"])
    requests = console.page.evaluate("window.requests")
    assert not [url for url, _ in requests if token in url]
    assert [with_token for url, with_token in requests if "live=sse" in url] == [False]
    assert [url for url, _ in requests if "live=sse" in url and "&signed=1." in url]
    httpx.delete(f"{cluster.url}/auth/tokens/{token[3:19]}", headers=WITH_ROOT).raise_for_status()
    console.sees("main", "You are signed out")
    console.open()


def test_a_state_stream_is_shown_as_tables(cluster: Cluster, console: Console) -> None:
    with cluster.client() as client:
        stream = client.stream("state/users")
        stream.create("application/json")
        for key, operation, value in (
            ("1", "insert", {"name": "Ada"}),
            ("2", "insert", {"name": "Bob"}),
            ("1", "update", {"name": "Ada L."}),
            ("2", "delete", None),
        ):
            headers = {"operation": operation}
            stream.append_json({"type": "user", "key": key, "value": value, "headers": headers})
    console.go("stream", "state", "users", view="tables")
    console.page.wait("tbody td", ["1", '"Ada L."'])


def test_what_producers_wrote_last_is_shown(cluster: Cluster, console: Console) -> None:
    url = f"{cluster.url}/v1/stream/made/by-producers"
    httpx.put(url, headers={**WITH_ROOT, "Content-Type": "text/plain"}).raise_for_status()
    stamp = {"Producer-Id": "till-7", "Producer-Epoch": "3", "Producer-Seq": "0"}
    headers = {**WITH_ROOT, **stamp, "Content-Type": "text/plain"}
    httpx.post(url, headers=headers, content=b"x").raise_for_status()
    console.go("stream", "made", "by-producers")
    console.sees(".producers", "till-7 epoch 3, last sequence 0")


def test_a_token_is_created_rotated_and_revoked(cluster: Cluster, console: Console) -> None:
    console.go("tokens")
    console.press("Create a token")
    console.answer(name="till", scopes="read:shop/*")
    console.sees("dialog pre", "sd_")
    first = console.page.text("dialog pre")
    console.page.click("dialog footer button")
    console.sees("td", "till")
    assert first not in console.page.evaluate("document.documentElement.outerHTML")

    def status(token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(f"{cluster.url}/", headers=headers).status_code

    wait_until(lambda: status(first) == 200, "the token is valid")
    console.press("Rotate till")
    console.answer(overlap="0")
    console.sees("dialog pre", "sd_")
    second = console.page.text("dialog pre")
    console.page.click("dialog footer button")
    wait_until(lambda: (status(first), status(second)) == (401, 200), "the secret has changed")
    console.press("Revoke till")
    console.answer("till")
    console.misses("td", "till")
    wait_until(lambda: status(second) == 401, "the token is revoked")


def test_limits_are_set_and_cleared(cluster: Cluster, console: Console) -> None:
    console.go("limits")
    console.press("Set limits")
    console.answer(name="limited", max_streams="7")
    console.sees("td", "Streams: 7")
    found = httpx.get(f"{cluster.url}/cluster/limits/buckets/limited", headers=WITH_ROOT)
    assert found.json() == {"max_streams": 7}
    console.press("Clear the limits of limited")
    console.answer("limited")
    console.sees("main", "Nothing is limited")


def test_the_cold_store_is_flushed_and_says_what_it_can_restore(
    cluster: Cluster, console: Console
) -> None:
    with cluster.client() as client:
        stream = client.stream("cold/bytes")
        stream.create("text/plain")
        stream.append("x" * 1000)
    console.go("cold")
    console.sees("main", "Restore points")
    console.press("Flush now")
    console.sees("[role=status]", "The leader has started it")
    console.sees("dd", "0 B of 8.0 GiB")
    console.go("stream", "cold", "bytes")
    console.sees("dd", "1000 B (1 record)")


def test_an_operation_is_planned_begun_and_followed(cluster: Cluster, console: Console) -> None:
    leader = cluster.processes.leader().node_id
    console.go("operations")
    console.press("Begin one")
    console.sees("dialog", "Kind")
    console.page.evaluate("document.querySelector('dialog [name=kind]').value = 'drain'")
    console.answer(node_id=str(leader), window="0")
    console.sees("dialog .steps", f"transfer leadership away from node {leader}")
    console.answer("drain")
    console.page.until("location.hash.startsWith('#/operation/')")
    console.sees(".steps li.done", "transfer leadership")
    console.sees("header.title", "waiting for operator")
    console.sees(".steps li.begun", f"stop node {leader}")
    console.press("Cancel")
    console.answer("drain")
    console.sees("header.title", "cancelled")


def test_the_audit_trail_has_what_was_done(console: Console) -> None:
    console.go("audit")
    console.sees("td", "/auth/tokens")
    console.page.type(".toolbar input", "max_streams")
    rows = "[...document.querySelectorAll('tbody tr')].map((each) => each.textContent)"
    console.page.until(
        f"{rows}.length > 0 && {rows}.every((row) => row.includes('/cluster/limits'))"
    )


def test_what_a_token_does_not_permit_is_not_offered(cluster: Cluster, console: Console) -> None:
    with cluster.client() as client:
        client.stream("narrow/one").create("text/plain")
    console.open(cluster.token("narrow", "read:narrow/*", "list:narrow/*"))
    console.sees("h1", "Overview")
    titles = "[...document.querySelectorAll('header.frame nav a')].map((each) => each.textContent)"
    assert console.page.evaluate(titles) == ["Overview", "Streams"]
    console.go("buckets")
    console.page.wait("td a", ["narrow"])
    console.go("stream", "narrow", "one")
    console.sees("main", "There is no record yet")
    assert not {"Append", "Fork", "Close", "Delete"} & set(console.buttons())
    console.open()


def test_keys_lead_everywhere(cluster: Cluster, console: Console) -> None:
    with cluster.client() as client:
        client.stream("keyboard/one").create("text/plain")
        client.stream("keyboard/two").create("text/plain")
    console.go("overview")
    console.sees("h1", "Overview")
    console.page.press("/")
    console.page.type("dialog input", "keyboard/t")
    console.sees("dialog a", "keyboard/two")
    console.page.press("Enter")
    console.sees("h1", "two")
    console.go("bucket", "keyboard")
    console.page.wait("td a", ["one", "two"])
    console.page.press("ArrowDown", 2)
    console.page.press("Enter")
    console.sees("h1", "two")
    console.page.press("?")
    console.sees("dialog", "Keys")
    console.page.press("Escape")
    console.misses("dialog")


def test_a_dialog_gives_the_focus_back_to_what_opened_it(console: Console) -> None:
    console.go("buckets")
    opener = "document.querySelector('header.title button')"
    console.sees("header.title button", "Create a bucket")
    for closing in ("Cancel", "Escape"):
        console.page.evaluate(f"({opener}.focus(), 0)")
        console.page.press("Enter")
        console.sees("dialog", "")
        console.page.until("document.activeElement.name === 'name'")
        if closing == "Cancel":
            console.page.click("dialog footer button")
        else:
            console.page.press("Escape")
        console.misses("dialog")
        console.page.until(f"document.activeElement === {opener}")
