"""Calls on many sockets at once: the C extension, or its twin in Python where that was not built.

An extension that was built from an older source, and not again after an update, is not used.
`STREAMD_PURE_PYTHON=1` in the environment chooses the twin, for tests and measurements.
"""

from __future__ import annotations

import os
from contextlib import suppress

from streamd.http.sockets import batch_io_twin

receive_ready = batch_io_twin.receive_ready
send_each = batch_io_twin.send_each
LANGUAGE = "Python"

if os.environ.get("STREAMD_PURE_PYTHON") != "1":
    with suppress(ImportError):
        from streamd.http.sockets import _batch_io

        if getattr(_batch_io, "INTERFACE", 1) == batch_io_twin.INTERFACE:
            receive_ready = _batch_io.receive_ready
            send_each = _batch_io.send_each
            LANGUAGE = "C"
