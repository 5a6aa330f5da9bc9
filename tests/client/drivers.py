"""The three ways to use the client, all under the names of the blocking one.

A test is written once, in blocking calls. For asyncio and Trio each call runs in an event loop of
another thread.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import anyio.from_thread
import pytest
from anyio.from_thread import BlockingPortal

from streamd.client import AsyncClient, Client

KINDS = (
    pytest.param("blocking", marks=pytest.mark.long),  # generated from the asynchronous one
    "asyncio",
    pytest.param("trio", marks=pytest.mark.long),
)


@contextmanager
def connected(kind: str, urls: Any, **settings: Any) -> Iterator[Client]:
    """A client of a kind, closed at the end."""
    if kind == "blocking":
        with Client(urls, **settings) as client:
            yield client
        return
    with (
        anyio.from_thread.start_blocking_portal(kind) as portal,
        _Blocking(portal, AsyncClient(urls, **settings)) as client,
    ):
        yield cast("Client", client)


class _Blocking:
    """An object of the asynchronous client, used by blocking calls."""

    def __init__(self, portal: BlockingPortal, held: Any) -> None:
        self._portal = portal
        self._held = held

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._held, name)
        return self._call(found) if inspect.ismethod(found) else self._wrapped(found)

    def _call(self, method: Any) -> Any:
        def call(*given: Any, **named: Any) -> Any:
            if inspect.iscoroutinefunction(method):
                return self._wrapped(self._portal.call(lambda: method(*given, **named)))
            return self._wrapped(method(*given, **named))

        return call

    def _wrapped(self, found: Any) -> Any:
        is_ours = type(found).__name__.startswith("Async")
        return _Blocking(self._portal, found) if is_ours else found

    def __iter__(self) -> _Blocking:
        return self

    def __next__(self) -> Any:
        try:
            return self._portal.call(self._held.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        self._context = self._portal.wrap_async_context_manager(self._held)
        return self._wrapped(self._context.__enter__())

    def __exit__(self, *raised: Any) -> Any:
        return self._context.__exit__(*raised)
