"""Listing a bucket from the store: what a page shows, and what it costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.auth.scopes import NamePattern, Scopes, parse_scope
from streamd.streams.commands import Create
from streamd.streams.model import Settings
from streamd.streams.queries import listing
from streamd.streams.queries.listing import BucketQuery, ListQuery, Page, list_buckets, list_streams
from tests.streams.driver import TEXT, Driver, key
from tests.streams.memory_store import MemoryStore


@pytest.fixture
def driver() -> Driver:
    return Driver()


def page(driver: Driver, prefix: str = "", after: str = "", limit: int = 1000) -> Page:
    driver.flush()
    query = ListQuery(b"b", prefix.encode(), after.encode(), limit)
    return list_streams(driver.store, query, driver.now_ms)


def names(found: Page) -> list[str]:
    return [listed.name.decode() for listed in found.streams]


def fill(driver: Driver, count: int) -> list[str]:
    made = [f"s{number:05}" for number in range(count)]
    for name in made:
        driver.create(name)
    return made


def test_names_are_in_the_order_of_their_bytes(driver: Driver) -> None:
    unordered = ["b", "a", "ab", "a b", "aé", "a/b", "Z", "日本", "a.b", "ab-"]
    for name in unordered:
        driver.create(name)
    assert names(page(driver)) == sorted(unordered, key=str.encode)


def test_a_page_shows_the_metadata_of_a_stream(driver: Driver) -> None:
    driver.create("s", "text/plain; charset=utf-8")
    driver.now_ms += 5
    driver.append(b"four", "s", close=True)
    [listed] = page(driver).streams
    assert (listed.content_type, listed.tail) == ("text/plain; charset=utf-8", (1, 4))
    assert (listed.created_ms, listed.last_write_ms) == (driver.now_ms - 5, driver.now_ms)
    assert listed.closed


def test_other_buckets_are_not_listed(driver: Driver) -> None:
    for bucket in ("a", "b", "b-", "c", "b0"):
        driver.do(Create(key(f"in-{bucket}", bucket), Settings(TEXT), implicit_bucket=True))
    assert names(page(driver)) == ["in-b"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 600, 601, 1000])
def test_pages_have_each_stream_once(driver: Driver, limit: int) -> None:
    made = fill(driver, 601)
    seen: list[str] = []
    found = page(driver, limit=limit)
    while True:
        seen += names(found)
        assert found.has_more == (len(seen) < len(made))
        if not found.has_more:
            break
        assert len(found.streams) == limit
        assert found.cursor is not None
        found = page(driver, after=found.cursor.decode(), limit=limit)
    assert seen == made


def test_a_prefix_and_a_cursor_work_together(driver: Driver) -> None:
    for name in ("a", "user", "user-1", "user-2", "user-20", "user.", "v"):
        driver.create(name)
    assert names(page(driver, "user-")) == ["user-1", "user-2", "user-20"]
    assert names(page(driver, "user-", "user-1")) == ["user-2", "user-20"]
    assert names(page(driver, "user-", "a")) == ["user-1", "user-2", "user-20"]
    assert names(page(driver, "user-", "v")) == []
    assert names(page(driver, "user-", "user-1x")) == ["user-2", "user-20"], "need not exist"
    assert names(page(driver, "none")) == []
    assert page(driver, "none").cursor is None


def test_streams_that_clients_cannot_see_are_not_listed(driver: Driver) -> None:
    driver.create("deleted", body=b"x")
    driver.fork("fork", "deleted")
    driver.delete("deleted")
    driver.create("expired", ttl_ms=10)
    driver.create("living", ttl_ms=50)
    driver.now_ms += 20
    found = page(driver)
    assert names(found) == ["fork", "living"]
    assert found.over == [b"expired"]
    assert not page(driver, limit=2).has_more, "what cannot be seen is not more"


def test_a_page_skips_a_bounded_number_of_rows(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_ROWS", 20)
    for number in range(50):
        driver.create(f"s{number:02}", ttl_ms=10)
    driver.create("t")
    driver.now_ms += 20
    found = page(driver, limit=4)
    assert (names(found), found.has_more) == ([], True)
    pages = 1
    while found.has_more:
        assert found.rows < 40
        assert found.cursor is not None
        found = page(driver, after=found.cursor.decode(), limit=4)
        pages += 1
    assert names(found) == ["t"]
    assert pages <= 4


class CountingStore(MemoryStore):
    """Counts the rows that scans hand out."""

    scanned = 0

    def scan(
        self, start: bytes, stop: bytes, *, limit: int, max_bytes: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        rows = super().scan(start, stop, limit=limit, max_bytes=max_bytes)
        self.scanned += len(rows)
        return rows


def test_the_last_page_reads_no_more_rows_than_the_first() -> None:
    store = CountingStore()
    driver = Driver(store)
    made = fill(driver, 5000)
    driver.flush()
    costs = []
    for after in ("", made[2500], made[-101]):
        store.scanned = 0
        assert len(page(driver, after=after, limit=100).streams) == 100
        costs.append(store.scanned)
    assert costs[0] == costs[1] == 101
    assert costs[2] <= 101


SHORT = st.text("ab", max_size=3)


@given(
    st.sets(st.text("ab", min_size=1, max_size=4), max_size=12),
    st.lists(st.tuples(st.text("ab", min_size=1, max_size=3), st.booleans()), max_size=4),
    SHORT,
    SHORT,
    st.integers(1, 4),
)
def test_pages_show_only_what_a_pattern_matches(
    made: set[str], patterns: list[tuple[str, bool]], prefix: str, after: str, limit: int
) -> None:
    """All pages together, and no cursor, name anything else."""
    driver = Driver()
    for name in made:
        driver.create(name)
    driver.flush()
    scopes = Scopes(parse_scope(f"read:b/{text}{'*' * whole}") for text, whole in patterns)
    within = tuple(scopes.names("read", b"b"))
    expected = [
        name
        for name in sorted(made)
        if name.startswith(prefix)
        and name > after
        and any(name.startswith(text) if whole else name == text for text, whole in patterns)
    ]
    shown: list[str] = []
    cursor = after.encode()
    while True:
        query = ListQuery(b"b", prefix.encode(), cursor, limit, within)
        found = list_streams(driver.store, query, driver.now_ms)
        shown += names(found)
        assert found.cursor is None or found.cursor.decode() in expected
        if not found.has_more:
            break
        assert found.cursor is not None
        cursor = found.cursor
    assert shown == expected


def test_a_full_page_looks_at_no_further_pattern(driver: Driver) -> None:
    for name in "abc":
        driver.create(name)
    driver.flush()
    within = tuple(NamePattern(name, False) for name in (b"a", b"b", b"c"))
    found = list_streams(driver.store, ListQuery(b"b", limit=1, within=within), driver.now_ms)
    assert (names(found), found.rows, found.has_more) == (["a"], 2, True)


# -- buckets ---------------------------------------------------------------------------------------

BUCKETS = ["B", "_default", "a", "agents", "agents-2", "b" * 64, "tenant", "日本"]
LISTING = ["list:a*", "list:agents/*", "list:B/", "list:agents-2/", "admin:*", "read:*"]


def with_buckets(driver: Driver) -> Driver:
    for bucket in BUCKETS:
        driver.do(Create(key("s", bucket), Settings(TEXT), implicit_bucket=True))
    driver.flush()
    return driver


@pytest.mark.parametrize("limit", [1, 2, 3, len(BUCKETS), 1000])
def test_pages_have_each_bucket_once(driver: Driver, limit: int) -> None:
    with_buckets(driver)
    seen: list[str] = []
    has_more = True
    while has_more:
        after = seen[-1].encode() if seen else b""
        found = list_buckets(driver.store, BucketQuery(after=after, limit=limit))
        seen += [listed.name.decode() for listed in found.buckets]
        has_more = found.has_more
        assert not has_more or len(found.buckets) == limit
    assert seen == BUCKETS


@given(
    prefix=st.sampled_from(["", "a", "agents", "agents-", "x", "日"]),
    after=st.sampled_from(["", "a", "agents", "agentz", "~"]),
    scopes=st.lists(st.sampled_from(LISTING)),
)
def test_a_page_has_the_buckets_that_match_and_no_others(
    prefix: str, after: str, scopes: list[str]
) -> None:
    driver = with_buckets(Driver())
    compiled = Scopes(map(parse_scope, scopes))
    within = tuple(compiled.buckets("list"))
    found = list_buckets(driver.store, BucketQuery(prefix.encode(), after.encode(), 1000, within))
    assert [listed.name.decode() for listed in found.buckets] == [
        bucket
        for bucket in BUCKETS
        if bucket.startswith(prefix)
        and bucket.encode() > after.encode()
        and compiled.permit("list", key("", bucket))
    ]


def test_a_bucket_is_listed_with_the_streams_that_clients_see(driver: Driver) -> None:
    driver.now_ms += 7
    driver.create("one")
    driver.create("two")
    driver.flush()
    [listed] = list_buckets(driver.store, BucketQuery()).buckets
    assert (listed.name, listed.streams, listed.created_ms) == (b"b", 2, driver.now_ms)
