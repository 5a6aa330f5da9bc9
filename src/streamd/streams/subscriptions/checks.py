"""What clients may ask for, whatever the state is: judged before a command is proposed."""

from __future__ import annotations

import re

from streamd.streams.subscriptions import globs
from streamd.streams.subscriptions.model import (
    MAX_DESCRIPTION_CHARACTERS,
    MAX_ID_CHARACTERS,
    MAX_LEASE_MS,
    MAX_URL_BYTES,
    MAX_WORKER_CHARACTERS,
    MIN_LEASE_MS,
    Credential,
    FenceStamp,
    SubscriptionConfig,
)

_WAKE = re.compile(r"w_[0-9a-f]{32}")
_URL = re.compile(r"https?://[\x21-\x7e]+")


def is_id(text: str) -> bool:
    """Whether a subscription can have that id: one segment of a path, printable."""
    return 1 <= len(text) <= MAX_ID_CHARACTERS and text.isprintable() and "/" not in text


def is_worker(text: str) -> bool:
    """Whether a worker can have that name."""
    return 1 <= len(text) <= MAX_WORKER_CHARACTERS and text.isprintable()


def is_fence(stamp: FenceStamp) -> bool:
    """Whether a write can show that: a claim, or nothing of one if the credential is another."""
    if stamp.credential is not Credential.WRITE:
        return stamp == FenceStamp(credential=stamp.credential, is_alone=stamp.is_alone)
    is_named = not stamp.holder or is_worker(stamp.holder)
    return stamp.number > 0 and _WAKE.fullmatch(stamp.wake_id) is not None and is_named


def is_url(text: str) -> bool:
    """Whether a text can be the URL of a webhook; where it leads is judged elsewhere."""
    return len(text) <= MAX_URL_BYTES and _URL.fullmatch(text) is not None


def config_fault(config: SubscriptionConfig) -> str:
    """The field that is wrong in a configuration; empty if none is. The wake stream's key is only
    checked for being there."""
    is_webhook = config.kind == "webhook"
    if config.pattern and globs.fault(config.pattern):
        return "pattern"
    if is_webhook != is_url(config.webhook_url) or (not is_webhook and config.webhook_url):
        return "webhook_url"
    if is_webhook == bool(config.wake_key):
        return "wake_key"
    if not MIN_LEASE_MS <= config.lease_ttl_ms <= MAX_LEASE_MS:
        return "lease_ttl_ms"
    if len(config.description or "") > MAX_DESCRIPTION_CHARACTERS:
        return "description"
    return ""
