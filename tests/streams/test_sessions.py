"""Packages of nodes take effect once, however many copies the log has."""

from __future__ import annotations

import msgspec

from streamd.streams import keys, sessions
from streamd.streams.codec import Batch, decode_batch, encode_batch
from streamd.streams.commands import Append, Command, OpenSession, Outcome, Result
from streamd.streams.sessions import PackageStamp, WriteSession
from tests.streams.driver import TEXT, Driver, key

NODE = 2


def append(data: bytes) -> Append:
    return Append(key("s"), TEXT, data, [len(data)])


class Node:
    """A node with a session, as the log sees it."""

    def __init__(self, driver: Driver, nonce: int = 7, replaces: int = 0) -> None:
        self.driver = driver
        self.opened = driver.do(OpenSession(NODE, nonce, replaces)).result
        session = driver.state.sessions.get(keys.number(NODE))
        assert session is not None
        self.session_id = session.session_id

    def stamp(self, sequence: int, lowest: int, count: int = 1) -> PackageStamp:
        return PackageStamp(NODE, self.session_id, sequence, lowest, count)

    def send(self, sequence: int, *commands: Command, lowest: int = 1) -> list[Outcome]:
        """A log entry with one package."""
        stamp = self.stamp(sequence, lowest, len(commands))
        return entry(self.driver, commands, stamp)

    @property
    def remembered(self) -> set[int]:
        session = self.driver.state.sessions.get(keys.number(NODE))
        assert session is not None
        return set(session.outcomes)


def entry(driver: Driver, commands: tuple[Command, ...], *stamps: PackageStamp) -> list[Outcome]:
    index = driver.state.header.applied_index + 1
    return driver.machine.apply(index, 1, driver.now_ms, list(commands), stamps)


def with_stream() -> Driver:
    driver = Driver()
    driver.create()
    return driver


def results(outcomes: list[Outcome]) -> list[Result]:
    return [outcome.result for outcome in outcomes]


# -- a package is applied once --------------------------------------------------------------------


def test_a_second_copy_does_nothing_and_has_the_outcomes_of_the_first() -> None:
    driver = with_stream()
    node = Node(driver)
    first = node.send(1, append(b"a"), append(b"b"))
    driver.append(b"c")
    assert node.send(1, append(b"a"), append(b"b")) == first
    assert driver.content() == b"abc"


def test_copies_in_one_entry_take_effect_once() -> None:
    driver = with_stream()
    node = Node(driver)
    twice = (append(b"a"), append(b"a"))
    one, other = entry(driver, twice, node.stamp(1, 1), node.stamp(1, 1))
    assert one == other
    assert driver.content() == b"a"


def test_packages_may_come_in_any_order() -> None:
    driver = with_stream()
    node = Node(driver)
    node.send(3, append(b"3"))
    node.send(1, append(b"1"))
    node.send(2, append(b"2"))
    node.send(1, append(b"1"))
    assert driver.content() == b"312"


def test_commands_before_the_packages_belong_to_no_package() -> None:
    driver = with_stream()
    node = Node(driver)
    commands = (append(b"x"), append(b"1"))
    entry(driver, commands, node.stamp(1, 1))
    entry(driver, commands, node.stamp(1, 1))
    assert driver.content() == b"x1x"


def test_a_copy_is_recognized_after_a_restart() -> None:
    driver = with_stream()
    node = Node(driver)
    first = node.send(1, append(b"a"))
    driver.flush()
    driver.reopen()
    assert node.send(1, append(b"a")) == first
    assert driver.content() == b"a"


# -- acknowledged outcomes are forgotten ----------------------------------------------------------


def test_outcomes_are_kept_until_the_node_acknowledges_them() -> None:
    driver = with_stream()
    node = Node(driver)
    for sequence in (1, 2, 3):
        node.send(sequence, append(b"x"))
    assert node.remembered == {1, 2, 3}
    node.send(4, append(b"x"), lowest=3)
    assert node.remembered == {3, 4}


def test_a_late_copy_of_a_forgotten_package_does_nothing() -> None:
    driver = with_stream()
    node = Node(driver)
    node.send(1, append(b"1"))
    node.send(2, append(b"2"), lowest=2)
    assert results(node.send(1, append(b"1"))) == [Result.SESSION_LOST]
    assert driver.content() == b"12"


def test_a_late_copy_with_older_acknowledgements_restores_nothing() -> None:
    driver = with_stream()
    node = Node(driver)
    node.send(2, append(b"2"), lowest=2)
    node.send(3, append(b"3"), lowest=1)
    assert results(node.send(1, append(b"1"), lowest=1)) == [Result.SESSION_LOST]


def test_the_outcomes_kept_for_a_node_are_limited() -> None:
    driver = with_stream()
    node = Node(driver)
    last = sessions.MAX_REMEMBERED
    for sequence in range(1, last + 1):
        node.send(sequence, append(b"x"))
    assert results(node.send(last + 1, append(b"y"))) == [Result.SESSION_LOST]
    assert results(node.send(last + 1, append(b"y"), lowest=2)) == [Result.APPENDED]
    assert len(node.remembered) == sessions.MAX_REMEMBERED


def test_a_copy_with_another_number_of_commands_does_nothing() -> None:
    driver = with_stream()
    node = Node(driver)
    node.send(1, append(b"a"))
    assert results(node.send(1, append(b"a"), append(b"b"))) == [Result.SESSION_LOST] * 2
    assert driver.content() == b"a"


def test_a_package_below_its_own_lowest_does_nothing() -> None:
    driver = with_stream()
    node = Node(driver)
    assert results(node.send(1, append(b"a"), lowest=2)) == [Result.SESSION_LOST]
    assert results(node.send(1, append(b"a"), lowest=1)) == [Result.APPENDED]


# -- sessions -------------------------------------------------------------------------------------


def test_without_a_session_a_package_does_nothing() -> None:
    driver = with_stream()
    stamp = PackageStamp(NODE, 0, 1, 1, 1)
    assert results(entry(driver, (append(b"a"),), stamp)) == [Result.SESSION_LOST]


def test_a_process_that_opens_a_session_twice_has_one() -> None:
    driver = with_stream()
    node = Node(driver)
    node.send(1, append(b"a"))
    again = Node(driver)
    assert again.session_id == node.session_id
    assert again.remembered == {1}


def test_a_new_process_ends_the_session_of_the_one_before() -> None:
    driver = with_stream()
    old = Node(driver, nonce=7)
    old.send(1, append(b"old"))
    new = Node(driver, nonce=8, replaces=old.session_id)
    new.send(1, append(b"new"))
    assert results(old.send(2, append(b"late"))) == [Result.SESSION_LOST]
    assert driver.content() == b"oldnew"


def test_a_late_command_of_a_process_that_has_ended_does_not_end_the_session_of_the_next() -> None:
    """Two copies of the first process's command are in two leaders' logs; the second commits only
    after the next process has opened its session, and must not end that."""
    driver = with_stream()
    old = Node(driver, nonce=7)
    new = Node(driver, nonce=8, replaces=old.session_id)
    late = Node(driver, nonce=7)
    assert late.opened is Result.STALE
    assert results(new.send(1, append(b"new"))) == [Result.APPENDED]


def test_the_session_of_a_removed_member_ends() -> None:
    driver = with_stream()
    node = Node(driver)
    header = driver.state.header
    driver.machine.configure(header.applied_index + 1, 1, b"configuration", {NODE})
    assert driver.state.sessions.get(keys.number(NODE)) is None
    assert header.configuration == b"configuration"
    assert results(node.send(1, append(b"a"))) == [Result.SESSION_LOST]


# -- formats --------------------------------------------------------------------------------------


def test_packages_of_an_entry_are_decoded_unchanged() -> None:
    stamp = PackageStamp(1, 2, 3, 3, 1)
    batch = Batch(1, [append(b"x"), OpenSession(1, 2**62, 3)], [stamp])
    assert decode_batch(encode_batch(batch)) == batch


def test_an_entry_of_a_release_without_sessions_has_no_packages() -> None:
    payload = msgspec.msgpack.encode([7, [["append", b"b\0s", "a/b", b"x", [1]]]])
    assert decode_batch(payload).packages == []


def test_a_package_that_claims_too_many_commands_stops_no_node() -> None:
    driver = with_stream()
    node = Node(driver)
    assert results(entry(driver, (append(b"a"),), node.stamp(1, 1, 5))) == [Result.APPENDED]


def test_a_session_is_stored_with_its_outcomes() -> None:
    driver = with_stream()
    node = Node(driver)
    outcomes = node.send(1, append(b"a"))
    driver.flush()
    row = driver.store.rows[keys.SESSION + keys.number(NODE)]
    stored = msgspec.msgpack.decode(row, type=WriteSession)
    assert stored == WriteSession(node.session_id, 7, 1, {1: outcomes})
