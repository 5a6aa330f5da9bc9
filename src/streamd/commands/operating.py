"""What operators ask of a cluster, through any of its nodes, in JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import urlsplit

import click

from streamd.client import Answer, Client
from streamd.client.errors import NOT_OURS, StreamdError, refusal
from streamd.commands.options import Command, Server, given_server, server_options
from streamd.commands.terminal import exit_on_failure
from streamd.protocol.headers import CONTENT_TYPE

# A parameter of reports that only the leader can give: any node fetches them from it.
AT_LEADER: Mapping[str, str] = {"at": "leader"}
_JSON: Mapping[str, str] = {CONTENT_TYPE: "application/json"}
_PEEK_S = 3.0

Json = dict[str, Any]


class Report(dict[str, Any]):
    """An object of an answer, at any depth. A field that it lacks is an error of the answer, which
    may be another service's; not a `KeyError`."""

    def __missing__(self, field: str) -> NoReturn:
        raise refusal(HTTPStatus.OK, "UNEXPECTED", f"{NOT_OURS}: it has no {field!r}", {})


def _report(answer: Answer) -> Json:
    answer.json()  # or it raises `StreamdError`
    found: Json = json.loads(answer.body, object_hook=Report)
    return found


class Operator:
    """Raises `StreamdError`; an answer that is not a JSON object is one, too."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = server.client()

    def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        """The report at a path."""
        return _report(self._client.request("GET", path, params=params))

    def post(self, path: str, command: Json, *, repeatable: bool = False) -> Json:
        """Give a command, without the fields that are None; its answer.

        One that is not `repeatable` is sent again only if it cannot have taken effect.
        """
        given = {key: value for key, value in command.items() if value is not None}
        answer = self._client.request(
            "POST", path, headers=_JSON, body=json.dumps(given).encode(), repeatable=repeatable
        )
        return _report(answer)

    def put(self, path: str, settings: Json) -> Json:
        """Replace what is at a path; the answer. May be repeated."""
        body = json.dumps(settings).encode()
        return _report(self._client.request("PUT", path, headers=_JSON, body=body))

    def delete(self, path: str) -> None:
        """Delete what is at a path. A repetition would not find it, so it is sent once."""
        self._client.request("DELETE", path, repeatable=False)

    def peek(self, address: str, path: str) -> Json | None:
        """The report of the node at an address, if it answers soon. It gets no token."""
        url = f"{urlsplit(self._server.urls[0]).scheme}://{address}"
        node = self._server._replace(urls=[url], token=None, retry_for_s=0)
        try:
            with node.client(timeout_s=_PEEK_S) as client:
                return _report(client.request("GET", path))
        except (StreamdError, ValueError):
            return None

    def is_ready(self) -> bool:
        """Whether a node answers now that it is ready."""
        try:
            self._impatient.request("GET", "/readyz/cluster")
        except StreamdError:
            return False
        return True

    @cached_property
    def _impatient(self) -> Client:
        return self._server._replace(retry_for_s=0).client()


def server_group(described: Command) -> ServerGroup:
    """A group of commands that are passed an `Operator` as the context's object.

    The options about the server may come before a command's name and after it.
    """

    @click.group(described.__name__, cls=ServerGroup, help=described.__doc__)
    @server_options
    def group() -> None:
        pass

    assert isinstance(group, ServerGroup)
    return group


class ServerGroup(click.Group):
    """Gives its commands, and groups of them, the options about the server."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        work = cmd.callback
        assert work is not None, "each command and group is made from a function"
        shared = click.command(server_options(_operated(cmd, work)))
        cmd.callback = shared.callback
        cmd.params.extend(shared.params)
        super().add_command(cmd, name)

    def add_offline(self, cmd: click.Command) -> None:
        """Add a command that asks no server."""
        super().add_command(cmd)

    def invoke(self, context: click.Context) -> Any:
        with exit_on_failure(None):
            return super().invoke(context)


def _operated(command: click.Command, work: Callable[..., Any]) -> Callable[..., Any]:
    """The work of a command, with an `Operator`; a group does none."""

    def operated(**given: Any) -> Any:
        context = click.get_current_context()
        if not isinstance(command, click.Group):
            context.obj = Operator(given_server(context))
        return work(**given)

    return operated
