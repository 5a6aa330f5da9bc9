"""streamd: a distributed server for Durable Streams."""

__version__ = "0.1.0"
