"""What others say about the log: states, pointers to its end, and earlier audits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from streamd_audit import ends
from streamd_audit.context import Context
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.findings import Finding, damage_kind, finding
from streamd_audit.framing import check_digest
from streamd_audit.names import EndName, parse, split
from streamd_audit.replay.whole import account_of, spans_of
from streamd_audit.states import states_of
from streamd_audit.watermark import Watermark, setbacks

# How many manifests and pointers to the end are compared.
_MOST_PLACES = 10_000


class Said(NamedTuple):
    """A place in the log that an object names; another one there is a finding of `kind`."""

    kind: str
    group: int
    index: int  # type: ignore[assignment]  # of NamedTuple
    term: int
    chain: int
    object: str


def findings_of_ends(context: Context) -> list[Finding]:
    """Manifests and pointers to the archive's end that name another entry than the log has, or one
    after its last, and a log that does not continue what an earlier audit judged."""
    found: list[Finding] = []
    said = [
        Said("manifest_off_log", state.group, state.index, state.term, state.chain, state.object)
        for state in states_of(context)[-_MOST_PLACES:]
    ]
    # Listed before the log was: a cluster at work puts later ones, with segments to match.
    for name in context.listing.ends:
        parsed = parse(split(name)[1])
        assert isinstance(parsed, EndName)
        try:
            damaged = _end_damage(context, name, parsed)
        except ObjectMissing:
            continue  # the newest few are kept
        if damaged is not None:
            found.append(damaged)
            continue
        place = parsed.index, parsed.term, parsed.chain
        said.append(Said("end_off_log", parsed.group, *place, name))
    last = last_entries(context)
    found += _off_log(context, said)
    found += _beyond(context, said, last)
    mark = context.notes.get("watermark")
    if isinstance(mark, Watermark):
        found += _set_back(context, mark, said, last)
    return found


def last_entries(context: Context) -> Mapping[int, int]:
    """The last entry of each group's log."""
    found = {span.group: span.last for span in sorted(spans_of(context))}
    # What an incremental audit does not read again, as far as segments have it.
    unread: Mapping[int, int] = context.notes.get("scanned_after", {})
    for group, index in context.listing.last_entries.items():
        found[group] = max(found.get(group, 0), min(index, unread.get(group, 0)))
    return {group: index for group, index in found.items() if index}


def _off_log(context: Context, said: list[Said]) -> Iterator[Finding]:
    there = account_of(context).places
    for one in said:
        known = there.get((one.group, one.index))
        if known is not None and known != (one.term, one.chain):
            yield finding(
                one.kind,
                cluster=context.cluster,
                group=one.group,
                index=one.index,
                object=one.object,
                expected=f"term {known[0]}, chain {known[1]:08x}",
                found=f"term {one.term}, chain {one.chain:08x}",
            )


def _beyond(context: Context, said: list[Said], last: Mapping[int, int]) -> Iterator[Finding]:
    """Of each group what names the latest entry after the log's last one."""
    newest: dict[int, Said] = {}
    for one in said:
        known = newest.get(one.group)
        if known is None or one.index >= known.index:
            newest[one.group] = one
    # The log after the oldest state that is kept is kept, too.
    states = {state.group: state.index for state in reversed(states_of(context))}
    for group, one in newest.items():
        # A log may begin after a state; until it does, there is nothing after that state.
        end = last.get(group, states.get(group, 0))
        if end < one.index:
            yield finding(
                "log_end_missing",
                cluster=context.cluster,
                group=group,
                index=end + 1,
                object=one.object,
                expected=f"entries up to {one.index}",
                found=f"the last one is {end}",
            )


def _set_back(
    context: Context, mark: Watermark, said: list[Said], last: Mapping[int, int]
) -> Iterator[Finding]:
    # An incremental audit may begin with the state as of the watermark, after the log's entry.
    places = {(one.group, one.index): (one.term, one.chain) for one in said}
    for one in setbacks(mark.marks, last, places | account_of(context).places):
        yield finding(
            one.kind,
            cluster=context.cluster,
            group=one.mark.group,
            index=one.mark.index,
            expected=one.expected,
            found=one.found,
        )


def _end_damage(context: Context, name: str, parsed: EndName) -> Finding | None:
    try:
        content = context.store.read(name)
        end = ends.read_end(content)
        ends.check_name(parsed, end)
        check_digest(name, content)
        if end.cluster != context.cluster:
            raise Damaged("other_cluster", f"the pointer is of cluster {end.cluster}")
        ends.check_known(content)
    except Damaged as damaged:
        return finding(
            damage_kind("end", damaged.kind),
            cluster=context.cluster,
            group=parsed.group,
            index=parsed.index,
            object=name,
            found=damaged.detail,
        )
    return None
