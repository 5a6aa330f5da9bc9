"""The application of a simulated node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from streamd.app import App
from streamd.http.protocol.messages import Request, Response
from streamd.http.streams.live import Hub
from streamd.process.threads import OneThread
from streamd.tiering.async_store import AsyncObjectStore
from tests.sim.persisting import Crashed


class CountingHub(Hub):
    """Live readers; counts the Raft snapshots that were installed."""

    def __init__(self, clock_ms: Callable[[], int], counted: Counter[str]) -> None:
        super().__init__(clock_ms, 1000)
        self._counted = counted

    def start_over(self, group_id: int) -> None:
        self._counted["Raft snapshot installs"] += 1
        super().start_over(group_id)


class SimulatedApp(App):
    """Writes to the simulated disk while it is built, too: it may reset its log."""

    call_now: Callable[..., bool | None]

    def _build(self, cold: AsyncObjectStore | None, in_log_thread: OneThread) -> None:
        def build() -> bool:
            super(SimulatedApp, self)._build(cold, in_log_thread)
            return True

        if self.call_now(build) is None:
            raise Crashed(powerless=False)

    def _operations(self) -> Callable[[Request], Awaitable[Response]]:
        """Operators call the node itself here; to build their routes takes a tenth of a run."""

        async def operate(request: Request) -> Response:
            raise AssertionError(f"an operator sent {request.method} {request.path!r}")

        return operate
