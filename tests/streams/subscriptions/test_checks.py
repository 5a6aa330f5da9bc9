"""What clients may ask for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamd.streams.subscriptions.checks import config_fault, is_id, is_url, is_worker
from streamd.streams.subscriptions.model import SubscriptionConfig

WEBHOOK = SubscriptionConfig("webhook", "events/*", "https://worker.example/hooks")
PULL = SubscriptionConfig("pull-wake", wake_key=b"wake\0pool", description="events")


@pytest.mark.parametrize("text", ["a", "sub-1", "é b", "x" * 256])
def test_an_id_is_a_printable_segment_of_a_path(text: str) -> None:
    assert is_id(text)
    assert is_worker(text)


@pytest.mark.parametrize("text", ["", "a\n", "x" * 257, "a\0"])
def test_other_texts_are_not_ids_or_names_of_workers(text: str) -> None:
    assert not is_id(text)
    assert not is_worker(text)


def test_a_slash_may_be_in_the_name_of_a_worker_alone() -> None:
    assert not is_id("a/b")
    assert is_worker("host/4711")


@pytest.mark.parametrize(
    "text", ["ftp://x", "https://", "https://a b", "x", "https://" + "a" * 2048]
)
def test_only_urls_of_http_are_urls(text: str) -> None:
    assert not is_url(text)


@pytest.mark.parametrize("config", [WEBHOOK, PULL])
def test_a_whole_configuration_is_right(config: SubscriptionConfig) -> None:
    assert config_fault(config) == ""


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (replace(WEBHOOK, pattern="a*"), "pattern"),
        (replace(WEBHOOK, webhook_url=""), "webhook_url"),
        (replace(PULL, webhook_url="https://x"), "webhook_url"),
        (replace(PULL, webhook_url="x"), "webhook_url"),
        (replace(WEBHOOK, wake_key=b"a\0b"), "wake_key"),
        (replace(PULL, wake_key=b""), "wake_key"),
        (replace(PULL, lease_ttl_ms=999), "lease_ttl_ms"),
        (replace(PULL, lease_ttl_ms=600_001), "lease_ttl_ms"),
        (replace(PULL, description="x" * 1025), "description"),
    ],
)
def test_the_field_at_fault_is_named(config: SubscriptionConfig, field: str) -> None:
    assert config_fault(config) == field
