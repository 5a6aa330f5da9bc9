"""What a node does with the cold store: bytes go there, are read back, dropped here, removed there.

`store` makes its calls without blocking, `reads` and `records` are the way back. `tier` runs what
is done in rounds: `flush`, `gc` and `compaction` by the leader, `drop` by every node.
"""
