"""Where the options say the streams are: on servers, or in a store without any."""

from __future__ import annotations

from typing import NamedTuple

from streamd.spark import options as given
from streamd.spark.options import BadOption, Options, Stores
from streamd.spark.remote import Remote, Servers, client_of
from streamd.spark.streams import Streams

# The options that `streamd_audit.store` takes.
_REACHED_BY = given.STORE[2:]


class Place(NamedTuple):
    """Servers or a store. Small enough to be sent with every task."""

    servers: Servers | None
    stores: Stores | None

    def open(self, turn: int = 0, *, met: bool = False) -> Streams:
        """Open the streams for task number `turn`; tasks are spread over the nodes. `met` goes to
        `client_of`."""
        if self.servers is not None:
            return Remote(client_of(self.servers, turn, met=met))
        # A reader of servers needs no client for S3, which takes long to import.
        from streamd.spark.stored import stored_in

        assert self.stores is not None
        return stored_in(self.stores, fresh=not met)


def place_of(options: Options) -> Place:
    """Raises `BadOption`."""
    chosen = [name for name in ("url", "store") if name in options]
    if len(chosen) != 1:
        raise BadOption(
            "say where the streams are with option url, servers separated by commas, "
            "or with option store, a DIRECTORY or s3://BUCKET/PREFIX"
            + (", not with both" if chosen else "")
        )
    stray = given.STORE if chosen == ["url"] else given.SERVER
    for name in stray:
        if name in options:
            raise BadOption(f"option {name} cannot be combined with option {chosen[0]}")
    if chosen == ["url"]:
        servers = Servers(
            tuple(given.urls(options)),
            given.text(options, "cacert"),
            given.seconds(options, "retry_for_s"),
            given.text(options, "token"),
        )
        return Place(servers, None)
    stores = Stores(
        given.text(options, "store") or "",
        given.text(options, "cluster"),
        tuple((name, options[name]) for name in _REACHED_BY if name in options),
    )
    return Place(None, stores)
