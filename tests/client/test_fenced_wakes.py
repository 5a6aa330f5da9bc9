"""Workers that write to fenced streams: nothing of a wake that is over is taken."""

from __future__ import annotations

from uuid import uuid4

import pytest

from streamd.client import AlreadyExists, Client, Fenced, Wake


def test_a_fenced_stream_takes_nothing_from_a_wake_that_is_over(client: Client) -> None:
    name = f"s-{uuid4().hex[:12]}"
    client.stream(f"wakes/{name}").create("application/json")
    subscription = client.subscription(name)
    subscription.create(wake_stream=f"wakes/{name}", pattern=f"{name}/*")
    out = client.stream(f"{name}/out")
    assert out.create("application/json", write_fence=True).write_fence
    assert out.head().write_fence
    with pytest.raises(AlreadyExists):
        out.create("application/json")

    def late_append(wake: Wake) -> None:
        with wake.producer(f"{name}/out", "agent") as producer:
            producer.append_json("one")
            producer.flush()
            wake.ack({})
            producer.append_json("two")
            producer.flush()
            wake.release()
            producer.append_json("late")

    with pytest.raises(Fenced), subscription.worker().next() as wake:
        late_append(wake)
    assert list(out.read_json()) == ["one", "two"]
