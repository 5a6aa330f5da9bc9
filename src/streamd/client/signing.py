"""Signed URLs of streams, made with the token that the client itself sends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from streamd.auth import signed_urls
from streamd.auth.tokens import bearer
from streamd.client.core.streams import StreamFlows


def signed_url(
    stream: StreamFlows,
    credentials: Mapping[str, str],
    methods: Iterable[str],
    expires_in_s: int,
    base_url: str | None,
    prefix: bool,
) -> str:
    """The stream's URL, signed until so many seconds from now. Raises `ValueError`."""
    if not 1 <= expires_in_s <= signed_urls.MAX_LIFE_S:
        raise ValueError(f"a signed URL is valid for 1 to {signed_urls.MAX_LIFE_S} seconds")
    sent = {name.lower(): value for name, value in credentials.items()}
    token = bearer(sent.get("authorization", "").encode())
    if token is None:
        raise ValueError("the client has no token to sign with")
    url = (base_url or stream.session.url).rstrip("/")
    url += stream.name.bucketed_path() if prefix else stream.name.path
    expires_s = int(time.time()) + expires_in_s
    named = list(methods) or ["GET"]
    return signed_urls.signed_url(token, url, named, expires_s, prefix=prefix)
