"""Addresses, as others reach them."""

from __future__ import annotations

import os

import trio

from streamd.config.settings import ConfigError, split_address
from streamd.process.exits import errors_in

_TIMEOUT_S = 2.0


async def reach(address: str) -> str | None:
    """Connect to ``host:port`` and close the connection: why that failed, or None."""
    try:
        host, port = split_address("the address", address)
        with trio.fail_after(_TIMEOUT_S):
            stream = await trio.open_tcp_stream(host, port)
        await trio.aclose_forcefully(stream)
    except trio.TooSlowError:
        return f"no connection within {_TIMEOUT_S:g} s"
    except (ConfigError, OSError) as error:
        # Trio's own error has those of all addresses of the host as its cause.
        cause = errors_in(error.__cause__ or error)[0]
        errno = cause.errno if isinstance(cause, OSError) else None
        return str(cause) if errno is None or errno < 0 else os.strerror(errno).lower()
    return None
