"""The options that all commands of the client share, and the client made from them."""

from __future__ import annotations

import functools
import logging
import os
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from streamd.client import Client
from streamd.commands.terminal import exit_on_failure, watch

DEFAULT_URL = "http://127.0.0.1:4437"
# A token of the server or of an identity provider (RFC 6750 section 2.1).
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)

_SHORT_TYPES = {
    "text": "text/plain",
    "json": "application/json",
    "bytes": "application/octet-stream",
}

Command = Callable[..., None]
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,9})([smhd])")


def _urls(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    from streamd.client.connecting import url_list

    try:
        return url_list(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


token_file_option = click.option(
    "--token-file",
    envvar="STREAMD_TOKEN_FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="A file that contains the token. Or set STREAMD_TOKEN to the token.",
)
_SERVER_OPTIONS = (
    click.option(
        "--url",
        "urls",
        envvar="STREAMD_URL",
        default=DEFAULT_URL,
        show_default=True,
        callback=_urls,
        help="URLs of one or more nodes, separated by commas. Or STREAMD_URL.",
    ),
    click.option(
        "--cacert",
        envvar="STREAMD_CACERT",
        type=click.Path(exists=True, dir_okay=False),
        help="The CA (PEM) to trust for https instead of the system's. Or STREAMD_CACERT.",
    ),
    click.option(
        "--cert",
        envvar="STREAMD_CERT",
        type=click.Path(exists=True, dir_okay=False),
        help="A file with the client's certificate and key (PEM). Or STREAMD_CERT.",
    ),
    token_file_option,
    click.option(
        "--retry-for",
        "retry_for_s",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="Retry for this long. [default: 60; 0 for a server that refuses connections]",
    ),
)

_NAMES = ("urls", "cacert", "cert", "token_file", "retry_for_s")


def given_token(token_file: str | None) -> str | None:
    """The token in a file or the environment, if there is one. Raises `click.UsageError`."""
    token = os.environ.get("STREAMD_TOKEN")
    if token_file is not None:
        token = Path(token_file).read_text().strip()
    if token is not None and not _TOKEN.fullmatch(token):
        raise click.UsageError("the token contains characters other than A-Z a-z 0-9 . _ ~ + / - =")
    return token


class Server(NamedTuple):
    """What the options say about the server: where it is, and how it is asked."""

    urls: list[str]
    cacert: str | None
    cert: str | None
    token: str | None
    retry_for_s: float | None

    def client(self, **others: Any) -> Client:
        """A client of it. Raises `click.UsageError`."""
        _announce()
        try:
            return _CommandClient(
                self.urls,
                token=self.token,
                retry_for_s=self.retry_for_s,
                verify=self.cacert or True,
                cert=self.cert,
                **others,
            )
        except ssl.SSLError as error:
            raise click.UsageError(f"--cacert or --cert cannot be used: {error}") from None


class _CommandClient(Client):
    """Keeps to the time for retries, and says what it waits for."""

    def __init__(self, urls: list[str], **others: Any) -> None:
        super().__init__(urls, **others)
        self._session.bound(watch)


@functools.cache
def _announce() -> None:
    """Show on standard error what the library logs: that it resumes what it follows."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("streamd: %(message)s"))
    logging.getLogger("streamd.client").addHandler(handler)


def server_options(command: Callable[..., Any]) -> Command:
    """Give a command, or a group before its commands, the options about the server."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        return command(**{name: value for name, value in given.items() if name not in _NAMES})

    for option in reversed(_SERVER_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def given_server(context: click.Context) -> Server:
    """What the options say that were given to a command, or to the groups before it; the command's
    win. Raises `click.UsageError`.
    """
    found = {name: _given(context, name) for name in _NAMES}
    token = given_token(found.pop("token_file"))
    return Server(token=token, **found)


def _given(context: click.Context, name: str) -> Any:
    at: click.Context | None = context
    while at is not None:
        if at.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            return at.params[name]
        at = at.parent
    return context.params[name]


def with_server(command: Callable[..., None]) -> Command:
    """Give a command the options about the server, pass it a `Server` first, and report failures.

    Failures name the parameter `name` or `bucket`.
    """

    @server_options
    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        with exit_on_failure(given.get("name") or given.get("bucket")):
            command(given_server(click.get_current_context()), **given)

    return wrapped


def talks_to_server(command: Command) -> Command:
    """Add the options of `with_server`, and pass the command a `Client` of the server."""

    @with_server
    @functools.wraps(command)
    def wrapped(server: Server, **given: Any) -> None:
        # Its connections end with the process: a failed producer may still be using them.
        command(server.client(), **given)

    return wrapped


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
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """The callback of an option. Raises `click.BadParameter`."""
    match = _DURATION.fullmatch(value or "")
    if value is None or match is None:
        if value is not None:
            raise click.BadParameter(f"'{value}' is not a time such as 90s, 15m, 12h or 30d")
        return None
    return int(match[1]) * _UNITS_S[match[2]]
