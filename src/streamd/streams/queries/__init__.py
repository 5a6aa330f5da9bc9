"""What is asked of a state or a log, and changes neither.

`reading` reads records, from memory, the store and the cold store. `listing` lists buckets and
streams. `foresight` tells the outcome of a command that would change nothing, before it is in the
log. `tracing` finds the command that appended a record: it applies what is asked for to a machine
over `rows_in_memory`.

Read on: docs/reads.md.
"""
