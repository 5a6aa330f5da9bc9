"""Servers that cannot serve now: a task waits for them as long as it may, and then fails."""

from __future__ import annotations

import pickle

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from streamd.client import Client, OutcomeUnknown, Unavailable
from streamd.spark.remote import Remote, Servers
from streamd.spark.sink.plan import Part
from streamd.spark.sink.sending import Sender
from streamd.spark.sink.settings import Settings, batch_settings
from streamd.spark.sink.targets import Target, Targets
from streamd.spark.sink.writers import BatchWriter
from tests.support.breaking_off import BUSY, breaking_off

pytestmark = pytest.mark.long

RECORDS = StructType([StructField("record", BinaryType())])
RETRY_FOR_S = 0.5
LATER = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 60\r\nConnection: close\r\n\r\n"


def settings_for(url: str) -> Settings:
    options = {"url": url, "stream": "demo/x", "retry_for_s": str(RETRY_FOR_S)}
    return batch_settings(options, RECORDS)


def client_for(settings: Settings) -> Client:
    return Client(settings.urls, retry_for_s=settings.retry_for_s)


def test_a_stream_is_looked_up_again_until_the_time_is_over() -> None:
    with breaking_off(BUSY) as (url, asked):
        settings = settings_for(url)
        with client_for(settings) as client, pytest.raises(Unavailable):
            Targets(client, settings).find(["demo/x"])
    assert len(asked) > 1


def test_rows_are_sent_again_until_the_time_is_over() -> None:
    part = Part("sink", 0, 0, "run", "attempt")
    target = Target("demo/x", "/v1/stream/demo/x", "text/plain", is_json=False, is_framed=False)
    with breaking_off(BUSY) as (url, asked), client_for(settings_for(url)) as client:
        with Sender(client, part, parallel=2, skip_closed=False) as sender:
            sender.send(target, [b"row"])
            # A proxy that answers so may have passed them on.
            with pytest.raises(OutcomeUnknown):
                sender.finish()
        assert {request.partition(b" ")[0] for request in asked} == {b"POST"}
        assert len(asked) > 1


def test_a_server_that_asks_for_a_longer_pause_than_the_time_left_is_not_asked_again() -> None:
    with breaking_off(LATER) as (url, asked):
        remote = Remote(Servers((url,), retry_for_s=RETRY_FOR_S))
        with pytest.raises(Unavailable, match="429"):
            remote.describe(["demo/x"])
    assert len(asked) == 1


def test_a_writer_is_sent_to_tasks_by_value() -> None:
    writer = BatchWriter({"url": "http://a", "stream": "demo/x"}, RECORDS, overwrite=False)
    assert vars(pickle.loads(pickle.dumps(writer))) == vars(writer)
