"""Logging: one structured event per line, on standard error.

Events carry names and numbers, never bodies, headers or tokens. For the same reason tracebacks are
logged without the values of variables.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from streamd.config import LogConfig


def set_up_logging(config: LogConfig, **everywhere: object) -> None:
    """Send streamd's events, and those of the libraries, to standard error. All of them get the
    values `everywhere`, unless they have their own."""

    def add(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**everywhere, **event}

    render: structlog.typing.Processor
    if config.format == "json":
        render = structlog.processors.JSONRenderer()
    else:
        render = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        add,
    ]
    if config.format == "json":
        transformer = ExceptionDictTransformer(show_locals=False)
        shared.append(structlog.processors.ExceptionRenderer(transformer))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("streamd").setLevel(config.level.upper())
