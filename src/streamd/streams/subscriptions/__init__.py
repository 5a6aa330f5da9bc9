"""Durable subscriptions: the rules, and how the machine applies them.

A subscription wakes a worker when one of its streams has records that were not acknowledged yet:
by a request to a webhook, or by an event in a wake stream, from which workers claim it.

The rules know no streams. `model` has a subscription's record and what commands carry, `globs` the
patterns that select streams, `paths` the paths by which clients name them, and `transitions` what
happens to a record: it wakes, is claimed, renewed and ended. `tokens` prove which wake their bearer
has. `webhook_texts` has what a webhook is sent and how its receiver can check it, and
`webhook_urls` where it may be sent. The `signing_keys` for this are replicated, so that every node
believes the tokens of every other. Time and random bytes are passed in.

The machine applies them in the log's order and time: `applying` the `commands`, over the `records`
of all subscriptions, with the `due_times` of their wakes. `links` says which streams a subscription
has (`link_rows` those that are not stored yet, `linked` lists them), and `wakes` what an append to
one of them begins.

Invariants:

- At most one wake is outstanding, and each has a higher generation than all before it, also
  those of a deleted subscription of the same id.
- While there is pending work a wake is outstanding: a wake ends only with the lease, and another
  one begins at once if work is left.
- What names another number, generation or wake id than the record has changes nothing.

Read on: docs/subscriptions.md; sections 6 and 7 of the protocol.
"""
