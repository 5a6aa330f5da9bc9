"""Hides credentials in addresses that messages and logs show."""

from __future__ import annotations


def shown(address: str) -> str:
    """An address without the parts that may hold credentials: all before its last ``@``, and a
    query."""
    address, question_mark, _ = address.partition("?")
    before, at, host = address.rpartition("@")
    if at:
        scheme, slashes, _ = before.partition("//")
        address = f"{scheme}//***@{host}" if slashes else f"***@{host}"
    return f"{address}?***" if question_mark else address
