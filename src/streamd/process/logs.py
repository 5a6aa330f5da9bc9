"""Logging: one structured event per line, on standard error.

Events carry names and numbers, never bodies, headers or tokens. For the same reason tracebacks are
logged without the values of variables.

What reaches a log may still have been chosen by a stranger: an address in a handshake, the message
of an exception. So the bounds are here, for all events alike, and not where each is logged: a line
has at most `MAX_LINE_BYTES`, an event at most `PER_S` lines a second, and no value has control
characters, which could forge lines or move a terminal's cursor.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, TextIO

import structlog
from structlog.tracebacks import ExceptionDictTransformer
from structlog.typing import EventDict, ExcInfo, Processor

MAX_LINE_BYTES = 1024
# A traceback shows a bug of ours: it takes more lines, or one long one in JSON.
MAX_TRACEBACK_BYTES = 16 * 1024
# How much of what was logged last is kept in memory.
MAX_TAIL_BYTES = 256 * 1024
# An event may have so many lines at once, and so many more in each second.
BURST = 20
PER_S = 1.0

_MAX_EVENTS = 1000
_MAX_ITEMS = 20
_MAX_FRAMES = 20
_VALUE_CHARACTERS = (512, 128, 32, 8)
_TRACEBACKS = ("exception", "exc_info", "stack", "stack_info")


class RateLimit(logging.Filter):
    """Lets `BURST` lines of an event through, and then `PER_S` in each second. The next line that
    passes has the number of those before it that did not, as `suppressed`."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._allowances: dict[str, tuple[float, float]] = {}
        self._suppressed: dict[str, int] = {}
        self.suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
        ours = record.msg if isinstance(record.msg, dict) else None
        # The messages of other libraries are texts, which may be different each time.
        event = record.name if ours is None else str(ours.get("event"))
        if len(self._allowances) >= _MAX_EVENTS and event not in self._allowances:
            event = ""
        now_s = self._now_s()
        allowance, renewed_s = self._allowances.get(event, (float(BURST), now_s))
        allowance = min(BURST, allowance + (now_s - renewed_s) * PER_S)
        if allowance < 1:
            self._allowances[event] = allowance, now_s
            self._suppressed[event] = self._suppressed.get(event, 0) + 1
            self.suppressed += 1
            return False
        self._allowances[event] = allowance - 1, now_s
        if suppressed := self._suppressed.pop(event, 0):
            if ours is not None:
                record.msg = {**ours, "suppressed": suppressed}
            else:
                record.msg, record.args = f"{record.getMessage()} (suppressed={suppressed})", ()
        return True


class LogTail:
    """The last lines that a process has logged, up to `MAX_TAIL_BYTES`, for operators who look into
    it. Any thread may add to it."""

    def __init__(self, max_bytes: int = MAX_TAIL_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lines: deque[str] = deque()
        self._size = 0
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        """Keep a line, and forget the oldest ones that leave no room for it."""
        with self._lock:
            self._lines.append(line)
            self._size += _size(line)
            while self._size > self._max_bytes:
                self._size -= _size(self._lines.popleft())

    def text(self) -> str:
        """All lines that are kept, the oldest first."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines)


def _size(line: str) -> int:
    return len(line.encode(errors="backslashreplace")) + 1


class _KeepingHandler(logging.StreamHandler[TextIO]):
    """Writes lines, and keeps the last ones."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        _tail.add(line)
        return line


_rate_limit = RateLimit()
_tail = LogTail()


def last_lines() -> str:
    """The last lines that this process has logged."""
    return _tail.text()


def suppressed_lines() -> int:
    """How many lines this process has not logged, because of their number."""
    return _rate_limit.suppressed


def set_up_logging(form: Literal["console", "json"], level: str, **everywhere: object) -> None:
    """Send streamd's events of `level` and above, and those of the libraries, to standard error.

    All of them get the values `everywhere`, unless they have their own.
    """

    def add(_: object, __: str, event: EventDict) -> EventDict:
        return {**everywhere, **event}

    render: Processor
    if form == "json":
        render = structlog.processors.JSONRenderer()
    else:
        render = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=_write_traceback
        )
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add,
    ]
    if form == "json":
        transformer = ExceptionDictTransformer(show_locals=False, max_frames=_MAX_FRAMES)
        shared.append(structlog.processors.ExceptionRenderer(transformer))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = _KeepingHandler(sys.stderr)
    handler.addFilter(_rate_limit)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                bounded(render),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("streamd").setLevel(level.upper())


def _write_traceback(out: TextIO, exc_info: ExcInfo) -> None:
    """The end of a traceback, whose last line may quote what a client sent."""
    lines = "".join(traceback.format_exception(*exc_info)).splitlines()[-3 * _MAX_FRAMES :]
    out.write("\n".join(_shortened(line, _VALUE_CHARACTERS[0]) for line in lines))


def bounded(render: Processor) -> Processor:
    """`render`, for values that are cut until the line is short enough."""

    def rendered(logger: Any, name: str, event: EventDict) -> str:
        has_traceback = any(event.get(key) for key in _TRACEBACKS)
        limit = MAX_TRACEBACK_BYTES if has_traceback else MAX_LINE_BYTES
        line = ""
        for characters in _VALUE_CHARACTERS:
            line = str(render(logger, name, _cut(event, characters)))
            if len(line.encode(errors="backslashreplace")) < limit:
                return line
        # Too many values, which no event of ours has.
        names = ("timestamp", "level", "event")
        few = {key: event[key] for key in names if key in event}
        return str(render(logger, name, {**_cut(few, _VALUE_CHARACTERS[1]), "cut": True}))

    return rendered


def _cut(event: Mapping[str, Any], characters: int) -> EventDict:
    """The event with values of at most so many characters, all of them printable."""
    cut = {}
    for key, value in event.items():
        if key == "exc_info":
            cut[key] = value  # Rendered by lines, each within its own bound.
        elif key in ("timestamp", "level"):
            cut[key] = value
        else:
            cut[_shortened(str(key), characters)] = _shortened(value, characters)
    return cut


def _shortened(value: Any, characters: int) -> Any:
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, Mapping):
        pairs = list(value.items())[:_MAX_ITEMS]
        return {_shortened(str(key), characters): _shortened(one, characters) for key, one in pairs}
    if isinstance(value, list | tuple | set | frozenset):
        return [_shortened(one, characters) for one in list(value)[:_MAX_ITEMS]]
    text = value if isinstance(value, str) else repr(value)
    if len(text) > characters:
        text = f"{text[:characters]}… ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)
