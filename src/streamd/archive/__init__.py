"""The log and snapshots of the state on their way to the cold store, and what is kept there."""
