"""Which URLs and addresses webhooks may have."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from streamd.streams.subscriptions.webhook_urls import (
    MAX_URL_BYTES,
    WebhookUrl,
    WebhookUrlRejected,
    check_address,
    host_of,
    is_public,
    parse_network,
    parse_webhook_url,
)


def parsed(text: str, **more: bool) -> WebhookUrl:
    return parse_webhook_url(text, allow_local_http=more.get("local", True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://worker.example/hooks", WebhookUrl("worker.example", 443, "/hooks", False)),
        ("https://Worker.Example", WebhookUrl("worker.example", 443, "/", False)),
        ("https://w-1.example:8443/a?c&e=/?", WebhookUrl("w-1.example", 8443, "/a?c&e=/?", False)),
        ("https://xn--bcher-kva.example/", WebhookUrl("xn--bcher-kva.example", 443, "/", False)),
        ("https://worker1/", WebhookUrl("worker1", 443, "/", False)),
        ("https://8.8.8.8:9000/x", WebhookUrl("8.8.8.8", 9000, "/x", False)),
        ("https://[2606:4700::1111]/x", WebhookUrl("2606:4700::1111", 443, "/x", False)),
        ("http://localhost:3000/x", WebhookUrl("localhost", 3000, "/x", True)),
        ("http://127.0.0.1/x", WebhookUrl("127.0.0.1", 80, "/x", True)),
        ("http://127.9.8.7:8080/x", WebhookUrl("127.9.8.7", 8080, "/x", True)),
    ],
)  # fmt: skip
def test_a_url_that_a_webhook_may_have(text: str, expected: WebhookUrl) -> None:
    assert parsed(text) == expected


REJECTED = {
    "no URL": [
        "", "worker.example", "//worker.example/", "https:/worker.example", "https://",
        "https:///x", "https://worker.example/ x", "https://worker.example/\n", " https://a.example",
        "https://a.example/x#y", "https://a.example/b\\c", "https://a.example\\@b.example/",
        "https://bücher.example/", "https://a.example/\u212a", "https://a.example:/", "https://a.example:x/",
        "HTTPS://a.example/", "https://a_b.example/", "https://a.example./", "https://-a.example/",
        "https://a..example/", "https://%61.example/", "https://a.example/" + "x" * MAX_URL_BYTES,
    ],
    "another scheme": [
        "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/", "ws://a.example/",
        "http://a.example/", "http://8.8.8.8/", "http://10.0.0.1/hook", "http://[::1]/",
        "http://0.0.0.0/", "http://128.0.0.1/", "http://sub.localhost/",
    ],
    "a user": ["https://user@a.example/", "https://user:secret@a.example/", "https://a.example@10.0.0.1/"],
    "this machine": [
        "https://localhost/", "https://LOCALHOST/", "https://x.localhost/", "https://127.0.0.1/",
        "https://[::1]/", "https://0.0.0.0/", "https://[::]/",
    ],
    "a number that some take for an address": [
        "https://2130706433/", "https://017700000001/", "https://0x7f000001/", "https://0177.0.0.1/",
        "https://127.1/", "https://127.0.1/", "https://0x7f.0.0.1/", "https://1.2.3.4.5/",
        "https://8.8.8.08/", "https://8.8.8.256/", "https://8.8.8.8./", "http://127.1/", "http://2130706433/",
        "http://0x7f.1/", "http://127.0.0.01/", "https://foo.0x7f/",
    ],
    "an address that is not public": [
        "https://10.0.0.1/", "https://172.16.0.1/", "https://172.31.255.255/", "https://192.168.1.1/",
        "https://169.254.169.254/latest/meta-data", "https://100.64.0.1/", "https://100.100.100.200/",
        "https://192.0.0.192/", "https://168.63.129.16/", "https://224.0.0.1/", "https://240.0.0.1/",
        "https://255.255.255.255/", "https://0.1.2.3/", "https://198.18.0.1/", "https://192.0.2.1/",
        "https://198.51.100.1/", "https://203.0.113.1/", "https://192.88.99.1/",
        "https://[fe80::1]/", "https://[fc00::1]/", "https://[fd00:ec2::254]/", "https://[ff02::1]/",
        "https://[::ffff:8.8.8.8]/", "https://[::ffff:7f00:1]/", "https://[::ffff:10.0.0.1]/",
        "https://[::10.0.0.1]/", "https://[64:ff9b::8.8.8.8]/", "https://[64:ff9b::a00:1]/",
        "https://[64:ff9b:1::1]/", "https://[2002:a00:1::1]/", "https://[2002:808:808::1]/",
        "https://[2001::1]/", "https://[2001:db8::1]/", "https://[3fff::1]/", "https://[100::1]/",
        "https://[fec0::1]/", "https://[5f00::1]/", "https://[4000::1]/",
    ],
    "no address": ["https://[fe80::1%25eth0]/", "https://[::1::]/", "https://[]/", "https://[::/"],
    "a port of another service": [
        "https://a.example:22/", "https://a.example:25/", "https://a.example:0/",
        "https://a.example:65536/", "https://a.example:99999/", "https://a.example:6667/",
        "https://a.example:2049/", "http://localhost:25/",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    "text", [one for several in REJECTED.values() for one in several], ids=lambda one: one[:50]
)
def test_a_url_that_no_webhook_may_have(text: str) -> None:
    with pytest.raises(WebhookUrlRejected):
        parsed(text)


@pytest.mark.parametrize("text", ["http://localhost/x", "http://127.0.0.1:8080/"])
def test_http_to_this_machine_is_only_for_development(text: str) -> None:
    with pytest.raises(WebhookUrlRejected, match="https"):
        parsed(text, local=False)


@pytest.mark.parametrize("address", ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2a00::1", "2600::"])
def test_an_address_that_is_public(address: str) -> None:
    assert is_public(ip_address(address))
    check_address(ip_address(address), parsed("https://a.example/"))


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "::1", "::ffff:1.1.1.1", "2600::1%1"])
def test_what_a_name_resolves_to_is_judged_as_what_a_url_names(address: str) -> None:
    with pytest.raises(WebhookUrlRejected, match="not a public address"):
        check_address(ip_address(address), parsed("https://a.example/"))


@pytest.mark.parametrize(
    ("address", "is_local"),
    [("127.0.0.1", True), ("::1", True), ("10.0.0.1", False), ("8.8.8.8", False), ("::2", False)],
)
def test_the_name_of_this_machine_leads_nowhere_else(address: str, is_local: bool) -> None:
    url = parsed("http://localhost/")
    if is_local:
        check_address(ip_address(address), url)
        return
    with pytest.raises(WebhookUrlRejected, match="not this machine"):
        check_address(ip_address(address), url)


def test_networks_of_ones_own_can_be_allowed() -> None:
    networks = [parse_network("10.1.0.0/16"), parse_network("fd00:1::/32")]
    for text in ("https://10.1.2.3/", "https://[fd00:1::5]/"):
        assert (
            parse_webhook_url(text, allow_local_http=False, allowed_networks=networks).port == 443
        )
    for text in ("https://10.2.0.1/", "https://[fd00:2::5]/", "http://10.1.2.3/"):
        with pytest.raises(WebhookUrlRejected):
            parse_webhook_url(text, allow_local_http=True, allowed_networks=networks)


@pytest.mark.parametrize(
    ("text", "address", "authority", "connected"),
    [
        ("https://a.example/x?y", "8.8.8.8", "a.example", "https://8.8.8.8:443/x?y"),
        ("https://a.example:8443/", "2a00::1", "a.example:8443", "https://[2a00::1]:8443/"),
        ("http://localhost:81/", "::1", "localhost:81", None),
        ("http://localhost/", "::1", "localhost", "http://[::1]:80/"),
        ("https://[2a00::1]/", "2a00::1", "[2a00::1]", "https://[2a00::1]:443/"),
    ],
)
def test_a_url_is_connected_at_the_checked_address_and_keeps_its_name(
    text: str, address: str, authority: str, connected: str | None
) -> None:
    if connected is None:
        text, connected = text.replace(":81", ":8081"), "http://[::1]:8081/"
        authority = authority.replace(":81", ":8081")
    url = parsed(text)
    assert url.authority == authority
    assert url.at(ip_address(address)) == connected


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Worker.Example:8443/a", "worker.example"),
        ("http://127.0.0.1:8080/x", "127.0.0.1"),
        ("https://[2606:4700::1111]/x", "[2606:4700::1111]"),
        ("no URL", ""),
    ],
)
def test_webhooks_of_one_host_share_its_places(url: str, host: str) -> None:
    assert host_of(url) == host
