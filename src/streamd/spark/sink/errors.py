"""Errors that end a task of the sink. Each is a line for the user."""

from __future__ import annotations


class Fenced(Exception):
    """A later batch of the same sink has begun: this task is a leftover, and changed nothing."""


class RowsChanged(Exception):
    """The rows differ from those of the attempt that began the batch."""


class BadRow(Exception):
    """A row cannot be a record of the stream that it names."""


class NotWritten(Exception):
    """A stream does not take its rows."""
