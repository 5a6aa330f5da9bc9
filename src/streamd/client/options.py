"""The options that all commands of the client share, and the `Server` made from them."""

from __future__ import annotations

import functools
import os
import re
import ssl
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from streamd.client.terminal import exit_on_failure
from streamd.client.transport import Server
from streamd.redaction import shown

DEFAULT_URL = "http://127.0.0.1:4437"
# Of a server's own or of an identity provider (RFC 6750 section 2.1).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)

_SHORT_TYPES = {
    "text": "text/plain",
    "json": "application/json",
    "bytes": "application/octet-stream",
}

Command = Callable[..., None]


def _urls(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    urls = value.split(",")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise click.BadParameter(f"'{shown(url)}' does not begin with http:// or https://")
        if not url.partition("://")[2].strip("/"):
            raise click.BadParameter(f"'{shown(url)}' names no host")
    return urls


token_file_option = click.option(
    "--token-file",
    envvar="STREAMD_TOKEN_FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A file with the token to send. Or the token in STREAMD_TOKEN.",
)
_SERVER_OPTIONS = (
    click.option(
        "--url",
        "urls",
        envvar="STREAMD_URL",
        default=DEFAULT_URL,
        show_default=True,
        callback=_urls,
        help="The server; several nodes of a cluster with commas between. Or STREAMD_URL.",
    ),
    click.option(
        "--cacert",
        envvar="STREAMD_CACERT",
        type=click.Path(exists=True, dir_okay=False),
        help="A CA (PEM) to trust for https, instead of the system's. Or STREAMD_CACERT.",
    ),
    click.option(
        "--cert",
        envvar="STREAMD_CERT",
        type=click.Path(exists=True, dir_okay=False),
        help="A client certificate and its key (PEM) to show. Or STREAMD_CERT.",
    ),
    token_file_option,
    click.option(
        "--retry-for",
        "retry_for_s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Try again this long. [default: 60 once the server has answered, 0 before]",
    ),
)


def _server_options(command: Command) -> Command:
    for option in reversed(_SERVER_OPTIONS):
        command = option(command)
    return command


def given_token(token_file: str | None) -> str | None:
    """The token in a file or the environment, if there is one. Raises `click.UsageError`."""
    token = os.environ.get("STREAMD_TOKEN")
    if token_file is not None:
        token = Path(token_file).read_text().strip()
    if token is not None and not _TOKEN.fullmatch(token):
        raise click.UsageError("the token has characters that no token has")
    return token


def _server(
    urls: list[str],
    cacert: str | None,
    cert: str | None,
    token_file: str | None,
    retry_for_s: float | None,
) -> Server:
    token = given_token(token_file)
    try:
        return Server(urls, cacert=cacert, cert=cert, token=token, retry_for_s=retry_for_s)
    except ssl.SSLError as error:
        raise click.UsageError(f"--cacert or --cert cannot be used: {error}") from None


def talks_to_server(command: Command) -> Command:
    """Pass a command a `Server` first, made from its options, and report its failures.

    Failures name the parameter `name` or `bucket`.
    """

    @_server_options
    @functools.wraps(command)
    def wrapped(
        urls: list[str],
        cacert: str | None,
        cert: str | None,
        token_file: str | None,
        retry_for_s: float | None,
        **given: Any,
    ) -> None:
        with (
            exit_on_failure(given.get("name") or given.get("bucket")),
            closing(_server(urls, cacert, cert, token_file, retry_for_s)) as server,
        ):
            command(server, **given)

    return wrapped


def server_group(described: Command) -> click.Group:
    """A group of commands that are passed one `Server` as the context's object.

    Its options come before the command's name.
    """

    @click.group(described.__name__, cls=_ServerGroup, help=described.__doc__)
    @_server_options
    @click.pass_context
    def group(
        context: click.Context,
        urls: list[str],
        cacert: str | None,
        cert: str | None,
        token_file: str | None,
        retry_for_s: float | None,
    ) -> None:
        server = _server(urls, cacert, cert, token_file, retry_for_s)
        context.obj = context.with_resource(closing(server))

    return group


class _ServerGroup(click.Group):
    def invoke(self, context: click.Context) -> Any:
        with exit_on_failure(None):
            return super().invoke(context)


def content_type(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """A content type, or the one that a short word stands for."""
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
