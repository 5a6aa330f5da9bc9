"""A usage report: what is in a cold store, for whom, by bucket and day."""
