"""What is known about a log apart from it, in small files that the log's engine cannot lose.

LevelDB takes a truncated file for an ordinary crash and opens with the rest. The floor names an
entry that had been synced: a log that does not reach it, or holds another entry there, has lost
acknowledged writes. With them it may have lost a vote, and the node would vote twice in one term
(thesis 3.8). So the last vote is here too, and so is the loss until the leader has restored it.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct, error

import structlog
from crc32c import crc32c

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import HardState
from streamd.storage.errors import LogCorrupt
from streamd.storage.files import (
    is_there,
    read_checked,
    remove_durably,
    write_checked,
    write_durably,
)

_FLOOR = Struct(">4sQQI")
_CHECKSUM = Struct(">I")
_MAGIC = b"SDF1"

log = structlog.get_logger("streamd.storage")


class LogEvidence:
    """The files `floor`, `vote` and `lost` of one log. Every call blocks and raises `OSError`."""

    def __init__(self, floor_file: Path) -> None:
        self.floor_file = floor_file
        self._vote_file = floor_file.with_name("vote")
        self._lost_file = floor_file.with_name("lost")

    def floor(self) -> ChainPosition:
        """An entry known to be on disk; index 0 without a floor. Raises `LogCorrupt`."""
        if not is_there(self.floor_file):
            return ChainPosition()
        content = self.floor_file.read_bytes()
        try:
            magic, index, term, chain = _FLOOR.unpack(content[: _FLOOR.size])
            (checksum,) = _CHECKSUM.unpack(content[_FLOOR.size :])
        except error:
            raise LogCorrupt(f"the floor file {self.floor_file} is damaged") from None
        if magic != _MAGIC or checksum != crc32c(content[: _FLOOR.size]):
            raise LogCorrupt(f"the floor file {self.floor_file} is damaged")
        return ChainPosition(index, term, chain)

    def note_floor(self, position: ChainPosition) -> None:
        """Replace the floor, durably, with two syncs."""
        content = _FLOOR.pack(_MAGIC, position.index, position.term, position.chain)
        write_durably(self.floor_file, content + _CHECKSUM.pack(crc32c(content)))

    def vote(self) -> HardState | None:
        """The last hard state noted, None for a log without one. Raises `LogCorrupt`."""
        return read_checked(self._vote_file, HardState)

    def begin(self) -> None:
        """Note, durably and before a new log has any file, that it knows of no term and no vote.

        Without this note, damage to a log that was never voted with looks like the loss of a vote.
        """
        files = (self.floor_file, self._vote_file, self._lost_file)
        if not any(is_there(file) for file in files):
            self.floor_file.parent.mkdir(parents=True, exist_ok=True)
            self.note_vote(HardState())

    def note_vote(self, hard_state: HardState) -> None:
        """Replace the hard state, durably."""
        write_checked(self._vote_file, hard_state)

    def lost(self) -> ChainPosition | None:
        """The highest entry known to be lost. Raises `LogCorrupt`."""
        return read_checked(self._lost_file, ChainPosition)

    def note_lost(self, through_index: int, why: str, last: ChainPosition) -> ChainPosition:
        """Note, durably, that the log once held entries up to `through_index` and ends at `last`.

        Returns the highest loss noted so far.
        """
        before = self.lost() or ChainPosition()
        lost = max(before, ChainPosition(through_index), key=lambda position: position.index)
        write_checked(self._lost_file, lost)
        log.error(
            "the log has lost entries; this node does not vote until the leader restores them",
            why=why,
            log_ends_at=last.index,
            lost_through=lost.index,
            noted_in=str(self._lost_file),
        )
        return lost

    def forget_lost(self) -> None:
        """Note, durably, that nothing is lost any longer."""
        remove_durably(self._lost_file)
