"""What all commands of the client have in common on the command line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from streamd.client.terminal import failures_told
from streamd.client.transport import Server
from streamd.redaction import shown

DEFAULT_URL = "http://127.0.0.1:4437"

_SHORT_TYPES = {
    "text": "text/plain",
    "json": "application/json",
    "bytes": "application/octet-stream",
}

Command = Callable[..., None]


def talks_to_server(command: Command) -> Command:
    """Give a command a `Server` first, from its options, and have its failures told.

    A parameter `name` or `bucket` is what failures are said to be about.
    """

    @click.option(
        "--url",
        "urls",
        envvar="STREAMD_URL",
        default=DEFAULT_URL,
        show_default=True,
        callback=_urls,
        help="The server; several nodes of a cluster with commas between. Or STREAMD_URL.",
    )
    @click.option(
        "--cacert",
        envvar="STREAMD_CACERT",
        type=click.Path(exists=True, dir_okay=False),
        help="A CA (PEM) to trust for https, instead of the system's. Or STREAMD_CACERT.",
    )
    @click.option(
        "--retry-for",
        "retry_for_s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Try again this long. [default: 60 once the server has answered, 0 before]",
    )
    @functools.wraps(command)
    def wrapped(
        urls: list[str], cacert: str | None, retry_for_s: float | None, **given: Any
    ) -> None:
        with failures_told(given.get("name") or given.get("bucket") or "the server"):
            server = Server(urls, cacert=cacert, retry_for_s=retry_for_s)
            try:
                command(server, **given)
            finally:
                server.close()

    return wrapped


def _urls(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    urls = value.split(",")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise click.BadParameter(f"'{shown(url)}' does not begin with http:// or https://")
        if not url.partition("://")[2].strip("/"):
            raise click.BadParameter(f"'{shown(url)}' names no host")
    return urls


def content_type(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """A type as such, or one of the short words for it."""
    return None if value is None else _SHORT_TYPES.get(value, value)


type_option = click.option(
    "-t",
    "--type",
    "kind",
    callback=content_type,
    metavar="TYPE",
    help="text, json, bytes, or any content type.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
