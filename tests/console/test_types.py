"""The console's JavaScript: its types, checked by tsc, and functions that need no page."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from streamd.auth.scopes import Scopes, Verb, parse_scope
from streamd.http.console.files import STATIC
from streamd.streams.limits import ABOUT
from tests.support.tools import node_or_skip

HERE = Path(__file__).parent
# What the modules look at of a page when they are imported.
PAGE = """
    globalThis.location = { href: "http://x/console" }
    globalThis.sessionStorage = { getItem: () => null }
"""


def run(program: str) -> object:
    """What a module with this text prints, as JSON."""
    node_or_skip()
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", PAGE + program],
        cwd=STATIC, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.long
def test_its_types_are_right() -> None:
    node_or_skip()
    checked = subprocess.run(
        ["node", "node_modules/typescript/bin/tsc", "-p", "."],
        cwd=HERE,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


def test_its_form_has_all_limits() -> None:
    """They are set all at once."""
    found = run("""
        const { LIMITS } = await import("./limits.js")
        console.log(JSON.stringify(Object.keys(LIMITS)))
    """)
    assert set(found) == set(ABOUT)  # type: ignore[call-overload]


def test_its_scopes_permit_what_the_servers_do() -> None:
    given = ["read:agents/*", "append:agents/run-1", "list:tenant-*", "operate:cluster/status"]
    scopes = Scopes([parse_scope(text) for text in given])
    targets = [
        "agents/a",
        "agents/run-1",
        "agents/run-10",
        "agents/",
        "tenant-1/",
        "tenants/",
        "cluster/status",
    ]
    verbs: tuple[Verb, ...] = ("read", "append", "list", "operate")
    asked = [(verb, target) for verb in verbs for target in targets]
    found = run(f"""
        import {{ permits }} from "./scopes.js"
        const asked = {json.dumps(asked)}
        const given = {json.dumps(scopes.texts())}
        console.log(JSON.stringify(asked.map(([verb, target]) => permits(given, verb, target))))
    """)
    keys = [
        target.encode() if verb == "operate" else target.encode().replace(b"/", b"\0", 1)
        for verb, target in asked
    ]
    expected = [scopes.permit(verb, key) for (verb, _), key in zip(asked, keys, strict=True)]
    assert found == expected
    assert True in expected
    assert False in expected


def test_addresses_are_read_as_they_were_written() -> None:
    parts = ["a b", "100%", "x/y?z#", "ü", ".", "<img src=x>", ""]
    found = run(f"""
        import {{ addressOf, parseAddress, partsOf, partsOfPlain, streamPath }} from "./address.js"
        const parts = {json.dumps(parts)}
        const address = parseAddress(addressOf("stream", parts, {{ prefix: "a&b=c" }}))
        console.log(JSON.stringify([
          address.page, address.parts, address.options.get("prefix"),
          partsOf("/" + streamPath(parts)), parseAddress("#/x/%zz").parts,
          partsOf("/v1/stream/100%25"), partsOfPlain("100%25"), partsOfPlain("a/b/c"),
        ]))
    """)
    read = ["stream", parts, "a&b=c", parts, ["%zz"]]
    assert found == [*read, ["_default", "100%"], ["_default", "100%25"], ["a", "b", "c"]]


def test_records_are_found_in_an_answer_with_lengths() -> None:
    found = run("""
        const { unframed } = await import("./records.js")
        const body = Uint8Array.from([0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, 49, 44, 50, 51, 44])
        const first = "0000000000000007_0000000000000040"
        const shown = (json) => unframed(body.buffer, first, json)
          .map(({ number, offset, bytes }) => [number, offset, new TextDecoder().decode(bytes)])
        const nothing = unframed(new ArrayBuffer(0), "", true)
        console.log(JSON.stringify([shown(true), shown(false), nothing]))
    """)
    offsets = ["0000000000000007_0000000000000040", "0000000000000008_0000000000000042"]
    assert found == [
        [[7, offsets[0], "1"], [8, offsets[1], "23"]],
        [[7, offsets[0], "1,"], [8, offsets[1], "23,"]],
        [],
    ]


def test_times_are_those_that_messages_say() -> None:
    messages = [
        {"time": "2026-11-27T07:00:00Z"}, {"ts": 1795762800000}, {"timestamp": 1795762800},
        {"headers": {"timestamp": "2026-11-27T08:00:00.000+01:00"}}, {"time": "noon", "ts": None},
        [], None, 7, "2026-11-27",
    ]  # fmt: skip
    typed = ["2026-11-27 07:00", "2026-11-27", "2026-13-27 07:00", "2026", "0001_0002"]
    found = run(f"""
        const {{ parseTime, timeOf }} = await import("./records.js")
        const bytes = (message) => new TextEncoder().encode(JSON.stringify(message))
        const messages = {json.dumps(messages)}
        console.log(JSON.stringify([
          messages.map((message) => timeOf(bytes(message))),
          {json.dumps(typed)}.map(parseTime),
        ]))
    """)
    at = 1795762800000
    assert found == [
        [at, at, at, at, None, None, None, None, None],
        [at, at - 7 * 3_600_000, None, None, None],
    ]


def test_events_are_read_wherever_they_are_cut() -> None:
    text = 'event: data\ndata:one\ndata: two\n\n: beat\n\nevent: control\ndata:{"a":"ü:"}\n\n'
    found = run(f"""
        const {{ events }} = await import("./events.js")
        const bytes = new TextEncoder().encode({json.dumps(text)})
        const all = []
        for (let cut = 1; cut < bytes.length; cut += 1) {{
          const body = new ReadableStream({{ start(to) {{
            to.enqueue(bytes.slice(0, cut)); to.enqueue(bytes.slice(cut)); to.close()
          }} }})
          const seen = []
          for await (const event of events({{ body }})) seen.push([event.name, event.data])
          all.push(JSON.stringify(seen))
        }}
        console.log(JSON.stringify([...new Set(all)].map((one) => JSON.parse(one))))
    """)
    assert found == [[["data", "one\ntwo"], ["control", '{"a":"ü:"}']]]


def test_subscriptions_that_fail_or_wait_for_long_are_alarms() -> None:
    told = [
        {"failed": 1, "oldest_failed_ms": 59_999, "waiting": 1, "oldest_waiting_ms": 299_999},
        {"failed": 1, "oldest_failed_ms": 60_000},
        {"failed": 2000, "oldest_failed_ms": 600_000, "waiting": 3, "oldest_waiting_ms": 300_000},
        {},
    ]
    nothing = {"oldest_failed_ms": None, "oldest_waiting_ms": None, "pending_streams": 7}
    cases = [{"subscriptions": {**nothing, **one}, "leader_id": 1} for one in told]
    found = run(f"""
        const {{ alarmsOf }} = await import("./alarms.js")
        const shown = (status) => alarmsOf(status, null).map(({{ level, what }}) => [level, what])
        console.log(JSON.stringify({json.dumps(cases)}.map(shown)))
    """)
    assert found == [
        [],
        [["wait", "The wakes of a subscription fail"]],
        [
            ["bad", "The wakes of 2,000 subscriptions fail"],
            ["wait", "No worker comes to 3 subscriptions"],
        ],
        [],
    ]
