"""Checks of certificates, and of files that hold secrets."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from streamd.commands.doctor.findings import Examined, Finding, fail, ok, span, warn
from streamd.hosts.inspection.facts import CertificateFacts

_SOON_S = 21 * 86_400


def certificates(examined: Examined) -> Iterator[Finding]:
    """Whether certificates are valid, for how long, and for the names that others look for."""
    for node, facts in examined.nodes.items():
        # A node judges certificates by its own clock.
        now_ms = facts.answered_ms or examined.now_ms
        for one in facts.machine.certificates:
            yield from _certificate(node, one, now_ms)


def _certificate(node: int, one: CertificateFacts, now_ms: int) -> Iterator[Finding]:
    what, show = f"{one.key} {one.path}", f"openssl x509 -noout -text -in {one.path}"
    if one.error is not None:
        yield fail(f"{what} cannot be read: {one.error}", node, f"ls -l {one.path}")
        return
    left_s = (one.ends_ms - now_ms) / 1000
    renew = f"issue it again under the same path; it is loaded without a restart ({show})"
    if left_s <= 0:
        yield fail(f"{what} ended {span(-left_s)} ago", node, renew)
    elif one.begins_ms > now_ms:
        begins_s = (one.begins_ms - now_ms) / 1000
        yield fail(f"{what} is valid only in {span(begins_s)}", node, show)
    elif left_s < _SOON_S:
        yield warn(f"{what} ends in {span(left_s)}", node, renew)
    else:
        yield ok(f"{what} is valid for {span(left_s)}", node)
    for name in one.wanted:
        if not is_for(one.names, name):
            shown = ", ".join(one.names) or "no name"
            yield fail(f"{what} is for {shown}, and others look for {name}", node, show)


def is_for(names: list[str], wanted: str) -> bool:
    """Whether a certificate with these alternative names is one for a host, an address or a URI.

    An asterisk stands for the first label of a host (RFC 6125 section 6.4.3).
    """
    try:
        address = str(ip_address(wanted))
    except ValueError:
        host = wanted.lower().removesuffix(".")
        _, _, parent = host.partition(".")
        known = {name.lower() for name in names}
        return host in known or (bool(parent) and f"*.{parent}" in known)
    return address in names


def modes(examined: Examined) -> Iterator[Finding]:
    """Whether other users of the machine can read secrets and data."""
    for node, facts in examined.nodes.items():
        for file in facts.machine.private_files:
            what = f"{file.key} {file.path}"
            if file.error is not None:
                yield fail(f"{what}: {file.error}", node)
            elif file.is_open:
                text = f"other users of the machine may read {what}"
                yield warn(text, node, f"chmod go= {file.path}")
            else:
                yield ok(f"{what} is private", node)
