"""Measures streamd beside other Durable Streams servers, on one machine, in one run."""
