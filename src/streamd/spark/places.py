"""Where streams are, as the options say it: servers, or a store without any."""

from __future__ import annotations

from typing import NamedTuple

from streamd.spark import options as given
from streamd.spark.options import BadOption, Options
from streamd.spark.remote import Remote, Servers, server_of
from streamd.spark.streams import Streams


class Place(NamedTuple):
    """Small enough to go with every task."""

    servers: Servers

    def open(self, turn: int = 0, *, met: bool = False) -> Streams:
        """For task number `turn`: tasks spread over the nodes. `met` as in `server_of`."""
        return Remote(server_of(self.servers, turn, met=met))


def place_of(options: Options) -> Place:
    """Raises `BadOption`."""
    if "url" not in options:
        raise BadOption("option url is missing: name a server, or several with commas between")
    servers = Servers(
        tuple(given.urls(options)),
        given.text(options, "cacert"),
        given.seconds(options, "retry_for_s"),
    )
    return Place(servers)
