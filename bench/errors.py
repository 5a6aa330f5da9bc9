"""What can go wrong in a measurement."""


class BenchError(Exception):
    """The measurement cannot continue; the message says what a person can do."""


class ToolMissing(BenchError):
    """A program that the measurement needs is not installed."""


class RunFailed(BenchError):
    """One run gave no valid figure; the others may."""
