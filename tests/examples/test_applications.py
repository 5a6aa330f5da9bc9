"""What tests of examples/ rely on: an application that they kill is gone."""

from __future__ import annotations

import socket

import pytest

from tests.examples.applications import Application
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long


def test_an_application_that_was_killed_no_longer_listens(server: ServerProcess) -> None:
    with Application("examples.chat.app:app", {"STREAMD_URL": server.url}) as chat:
        for _ in range(3):
            chat.kill()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", chat.port), timeout=1)
            chat.start()
