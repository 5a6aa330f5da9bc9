"""Durable subscriptions: the values and the rules, without streams, clock and I/O.

A subscription wakes a worker when one of its streams has records that were not acknowledged yet:
by a request to a webhook, or by an event in a wake stream, from which workers claim it. `model` has
its record and what commands carry, `globs` the patterns that select streams, `paths` the paths by
which clients name them, and `transitions` what happens to a record: it wakes, is claimed, renewed
and ended. The machine (`streamd.streams`) applies these rules in the log's order and time, and
knows which streams are linked.

`tokens` prove which wake their bearer has. `webhook_texts` has what a webhook is sent and how its
receiver can check it, and `webhook_urls` where it may be sent. The `keys` for this are replicated,
so that every node believes the tokens of every other. Time and random bytes are passed in.

Invariants:

- At most one wake is outstanding, and each has a higher generation than all before it, also
  those of a deleted subscription of the same id.
- While there is pending work a wake is outstanding: a wake ends only with the lease, and another
  one begins at once if work is left.
- What names another number, generation or wake id than the record has changes nothing.

Read on: docs/subscriptions.md; sections 6 and 7 of the protocol.
"""
