"""What messages and logs may show of an address that somebody gave."""

from __future__ import annotations


def shown(address: str) -> str:
    """An address or URL without what may be credentials: all before its last ``@``, and a query."""
    address, question_mark, _ = address.partition("?")
    before, at, host = address.rpartition("@")
    if at:
        scheme, slashes, _ = before.partition("//")
        address = f"{scheme}//***@{host}" if slashes else f"***@{host}"
    return f"{address}?***" if question_mark else address
