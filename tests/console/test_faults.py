"""A console that is open while nodes die."""

from __future__ import annotations

import pytest

from tests.console.consoles import Cluster, Console

pytestmark = pytest.mark.long


def test_a_node_that_dies_is_an_alarm_until_it_is_back(cluster: Cluster, console: Console) -> None:
    console.go("overview")
    console.sees("main", "No alarms")
    cluster.nodes[2].kill()
    console.sees(".alarms", "Node 3 is silent")
    cluster.nodes[2].start()
    console.sees("main", "No alarms")


def test_the_page_outlives_its_node(cluster: Cluster, console: Console) -> None:
    with cluster.client() as client:
        client.stream("faults/tail").create("text/plain")
    console.go("stream", "faults", "tail", view="tail")
    console.sees("[role=status]", "live")
    cluster.nodes[0].kill()
    console.sees(".unreached", "The node does not answer")
    cluster.nodes[0].start()
    console.misses(".unreached")
    console.sees("[role=status]", "live")
    with cluster.client() as client:
        client.stream("faults/tail").append("after")
    console.sees(".records pre", "after")


def test_nobody_is_asked_while_nobody_looks(cluster: Cluster, console: Console) -> None:
    console.go("overview")
    console.page.until("document.querySelectorAll('.chart canvas').length > 0")
    hide = """Object.defineProperty(document, 'hidden', {{get: () => {0}, configurable: true}});
        document.dispatchEvent(new Event('visibilitychange'))"""
    sent = "performance.getEntriesByType('resource').length"
    console.page.evaluate(hide.format("true"))
    settled = f"""new Promise((resolve) => {{
        setTimeout(() => {{
            const before = {sent}
            setTimeout(() => resolve({sent} - before), 8000)
        }}, 1000)
    }})"""
    assert console.page.evaluate(settled) == 0
    console.page.evaluate(hide.format("false"))
    console.page.until(f"{sent} > {console.page.evaluate(sent)}")
