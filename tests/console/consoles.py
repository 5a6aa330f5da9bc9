"""The console in a page of Chromium, as somebody uses it."""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import quote

import httpx

from streamd.client import Client
from tests.examples.browsing import Page
from tests.http.authorized import ROOT
from tests.jepsen_like.cluster_processes import ClusterProcesses, NodeProcess, wait_until

WITH_ROOT = {"Authorization": f"Bearer {ROOT}"}
# The button that does what a dialog asks about.
_SUBMIT = "dialog footer button:last-child"


class Console:
    """The console of a node. Methods return when the page has done it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url

    def open(self, token: str = ROOT) -> None:
        """Open the node's address again, and sign in."""
        self.page.open("about:blank")
        self.page.open(f"{self.url}/")
        self.page.enter("input[name=token]", token)
        self.sees("header.frame", "Streams")

    def go(self, page: str, *parts: str, **options: str) -> None:
        """Go to a page by its address."""
        path = "/".join(quote(part, safe="") for part in (page, *parts))
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        self.page.evaluate(
            f"location.hash = {json.dumps(f'#/{path}' + (f'?{query}' * bool(query)))}"
        )

    def sees(self, selector: str, text: str) -> None:
        """Wait until an element that the selector finds contains a text."""
        self.page.until(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            f".some((each) => each.textContent.includes({json.dumps(text)}))"
        )

    def misses(self, selector: str, text: str = "") -> None:
        """Wait until no element that the selector finds contains a text."""
        self.page.until(
            f"![...document.querySelectorAll({json.dumps(selector)})]"
            f".some((each) => each.textContent.includes({json.dumps(text)}))"
        )

    def press(self, button: str) -> None:
        """Press a button of the page, by its name."""
        self.page.click(f'main ::-p-aria([name="{button}"][role="button"])')

    def answer(self, confirmation: str | None = None, **fields: str) -> None:
        """Fill the fields of a dialog in, in place of what is there, confirm it if it asks for
        that, and carry it out."""
        self.sees("dialog[open]", "")
        for name, text in fields.items():
            selector = f"dialog [name={name}]"
            self.page.evaluate(f"document.querySelector({json.dumps(selector)}).value = ''")
            self.page.type(selector, text)
        if confirmation is not None:
            assert self.page.evaluate(f"document.querySelector('{_SUBMIT}').disabled")
            self.page.type("dialog [name=confirmation]", confirmation)
        self.page.click(_SUBMIT)

    def buttons(self) -> list[str]:
        """The names of the buttons in the page."""
        found = "[...document.querySelectorAll('main button')].map((each) => each.textContent)"
        return list(self.page.evaluate(found))


class Cluster(NamedTuple):
    """Three nodes with tokens, a cold store and an audit trail."""

    processes: ClusterProcesses

    @property
    def nodes(self) -> list[NodeProcess]:
        return list(self.processes.nodes.values())

    @property
    def url(self) -> str:
        return self.nodes[0].url

    def client(self) -> Client:
        return Client(self.url, token=ROOT)

    def token(self, name: str, *scopes: str) -> str:
        """A new token, known to the first node."""
        made = httpx.post(
            f"{self.url}/auth/tokens",
            headers=WITH_ROOT,
            json={"name": name, "scopes": scopes},
            timeout=20,
        )
        assert made.status_code == 201, made.text
        token: str = made.json()["token"]
        probe = {"Authorization": f"Bearer {token}"}
        wait_until(
            lambda: httpx.get(f"{self.url}/", headers=probe).status_code == 200, "it is known"
        )
        return token
