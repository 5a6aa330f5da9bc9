"""What a node does with the cold store: bytes go there, are read back, dropped here, removed there.

`async_store` makes its calls without blocking, `cold_reader` is the way back.
`tier` runs what is done in rounds: `flush`, `gc` and `compaction` by the leader, `eviction` by
every node.
"""
