"""Where the messages of a bootstrap go: each arrives in pieces of any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO, Protocol

from streamd.commands.messages import LINE_BREAKS, JsonText, json_object
from streamd.commands.terminal import BadInput, write
from streamd.streams.content import is_json


class Sink(Protocol):
    """Takes the snapshot first (empty when the stream has none), then each message."""

    def begin(self, snapshot_offset: str, next_offset: str) -> None: ...

    def start(self, content_type: str) -> None: ...

    def data(self, data: bytes) -> None: ...

    def end(self) -> None: ...

    def finish(self) -> None:
        """Called once, after the last message."""


class Plain:
    """Writes to standard output: JSON one message a line, all else end to end."""

    def begin(self, snapshot_offset: str, next_offset: str) -> None:
        self._json = False

    def start(self, content_type: str) -> None:
        self._json = is_json(content_type)

    def data(self, data: bytes) -> None:
        write(data.translate(LINE_BREAKS) if self._json else data)

    def end(self) -> None:
        if self._json:
            write(b"\n")

    def finish(self) -> None:
        pass


class JsonLines:
    """Writes JSON to standard output: a line with the offsets, then a line for each message.

    An absent snapshot has no line.
    """

    def begin(self, snapshot_offset: str, next_offset: str) -> None:
        write(json_object({"snapshot_offset": snapshot_offset, "next_offset": next_offset}))
        self._skipping = snapshot_offset == "-1"

    def start(self, content_type: str) -> None:
        if not self._skipping:
            self._text = JsonText(content_type)
            write(self._text.head())

    def data(self, data: bytes) -> None:
        if not self._skipping:
            write(self._text.more(data))

    def end(self) -> None:
        if not self._skipping:
            write(self._text.foot())
        self._skipping = False

    def finish(self) -> None:
        pass


class Directory:
    """Writes files into a new directory: `snapshot`, messages from `00000001` on, `offsets.json`.

    `offsets.json` is written last: without it the directory is incomplete.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._number = 0
        self._file: BinaryIO | None = None
        self._offsets: dict[str, str] = {}

    def begin(self, snapshot_offset: str, next_offset: str) -> None:
        try:
            self._directory.mkdir(parents=True)
        except FileExistsError:
            raise BadInput(
                f"{self._directory} exists; name a directory that does not exist yet"
            ) from None
        self._offsets = {"snapshot_offset": snapshot_offset, "next_offset": next_offset}

    def start(self, content_type: str) -> None:
        if self._number:
            name = f"{self._number:08}"
        else:
            name = "snapshot"
            self._offsets["snapshot_content_type"] = content_type
        if self._number or self._offsets["snapshot_offset"] != "-1":
            self._file = (self._directory / name).open("xb")
        self._number += 1

    def data(self, data: bytes) -> None:
        if self._file is not None:
            self._file.write(data)

    def end(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def finish(self) -> None:
        (self._directory / "offsets.json").write_text(json.dumps(self._offsets) + "\n")
