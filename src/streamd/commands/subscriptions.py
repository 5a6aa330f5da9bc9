"""``streamd subscription``: subscriptions, which wake workers."""

from __future__ import annotations

import json
import time
from operator import itemgetter
from urllib.parse import quote

import click
from rich.console import Console
from rich.table import Table

from streamd.commands.operating import Json, Operator, server_group
from streamd.commands.options import json_option, seconds
from streamd.process.exits import EXIT_REFUSED

_PATH = "/v1/stream/__ds/subscriptions"
_POLL_S = 0.3
_WIDTH = 120


@server_group
def subscription() -> None:
    """Wake workers when streams have something for them.

    With tokens these commands need the scope subscribe for all streams of the subscription.
    """


@subscription.command()
@click.argument("name", metavar="ID")
@click.option("--pattern", help="Paths of streams: * is one segment, ** any number of them.")
@click.option("--stream", "streams", multiple=True, help="A stream's path; may be repeated.")
@click.option("--webhook", metavar="URL", help="Send wakes to this URL.")
@click.option("--wake-stream", metavar="PATH", help="Or append them to this stream.")
@click.option(
    "--lease",
    "lease_s",
    metavar="TIME",
    callback=seconds,
    help="How long a worker may be silent: 1s to 10m. [default: 30s]",
)
@click.option("--description", help="A note for people.")
@click.pass_obj
def create(
    operator: Operator,
    name: str,
    pattern: str | None,
    streams: tuple[str, ...],
    webhook: str | None,
    wake_stream: str | None,
    lease_s: int | None,
    description: str | None,
) -> None:
    """Create the subscription with an ID, and print it as JSON.

    It has the streams that the pattern matches, and those that are named; by what they have now,
    nobody is woken. One that is there already as asked for is left alone.
    """
    if (webhook is None) == (wake_stream is None):
        raise click.UsageError("give either --webhook or --wake-stream")
    if pattern is None and not streams:
        raise click.UsageError("give --pattern or --stream")
    asked = {
        "type": "webhook" if webhook else "pull-wake",
        "pattern": pattern,
        "streams": list(streams),
        "webhook": None if webhook is None else {"url": webhook},
        "wake_stream": wake_stream,
        "lease_ttl_ms": None if lease_s is None else lease_s * 1000,
        "description": description,
    }
    given = {key: value for key, value in asked.items() if value is not None}
    print(json.dumps(operator.put(_of(name), given), indent=2))


@subscription.command("list")
@json_option
@click.pass_obj
def list_subscriptions(operator: Operator, as_json: bool) -> None:
    """Show the subscriptions that the token may use."""
    found: list[Json] = []
    after: str | None = ""
    while after is not None:
        page = operator.get(_PATH, {"after": after} if after else None)
        found += page["subscriptions"]
        after = page["next_cursor"]
    owned, most = page["owned"], page["max_subscriptions"]
    found.sort(key=itemgetter("id"))
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = Table(box=None, header_style="bold")
    for title in ("id", "type", "pattern", "status", "generation", "pending", "wake"):
        table.add_column(title)
    for one in found:
        row = one["id"], one["type"], one["pattern"] or "-", one["status"]
        numbers = str(one["generation"]), str(one["pending_streams"])
        table.add_row(*row, *numbers, _wake(one))
    console = Console()
    console.width = max(console.width, _WIDTH)
    console.print(table, markup=False, highlight=False)
    if most is not None:
        print(f"the token has made {owned} of at most {most}")


def _wake(one: Json) -> str:
    """What has become of a subscription's wake, in a few words."""
    if one["wake"] is None:
        return "none"
    if (holder := one["wake"]["holder"]) is not None:
        return f"claimed by {holder}"
    return "received" if one["received"] else "waiting"


@subscription.command()
@click.argument("name", metavar="ID")
@click.pass_obj
def show(operator: Operator, name: str) -> None:
    """Show the subscription with an ID, with all its streams, as JSON."""
    found = operator.get(_of(name))
    streams = found["streams"]
    while (after := found["next_cursor"]) is not None:
        found = operator.get(_of(name), {"after": after})
        streams += found["streams"]
    whole = {**found, "streams": streams}
    del whole["next_cursor"], whole["has_more"]
    print(json.dumps(whole, indent=2))


@subscription.command()
@click.argument("name", metavar="ID")
@click.pass_obj
def delete(operator: Operator, name: str) -> None:
    """Delete the subscription with an ID, and all that is under way for it."""
    operator.delete(_of(name))


@subscription.command()
@click.argument("name", metavar="ID")
@click.option(
    "--timeout",
    "timeout_s",
    metavar="TIME",
    default="10s",
    show_default=True,
    callback=seconds,
    help="How long to wait for the worker.",
)
@click.pass_obj
def test(operator: Operator, name: str, timeout_s: int) -> None:
    """Wake the subscription with an ID without an append, and say whether its worker came.

    Exit status 1 if it did not: the webhook failed, or nobody claimed the wake in time.
    """
    wake_id = operator.post(f"{_of(name)}/test", {}, repeatable=True)["wake_id"]
    ends = time.monotonic() + timeout_s
    while True:
        found = operator.get(_of(name), {"limit": "1"})
        if (came := _came(found, wake_id)) is not None:
            print(came)
            return
        if found["status"] == "failed" or time.monotonic() >= ends:
            click.echo(f"streamd: nobody came: {found['failure'] or 'the wake waits'}", err=True)
            raise SystemExit(EXIT_REFUSED)
        time.sleep(_POLL_S)


def _came(found: Json, wake_id: str) -> str | None:
    """How the worker has taken the wake; None if it has not."""
    wake = found["wake"]
    if wake is None or wake["wake_id"] != wake_id:
        return "the worker came, and is done"
    if wake["holder"] is not None:
        return f"claimed by {wake['holder']}"
    is_webhook = found["type"] == "webhook"
    return "the webhook was received" if is_webhook and found["received"] else None


def _of(name: str) -> str:
    return f"{_PATH}/{quote(name, safe='')}"
