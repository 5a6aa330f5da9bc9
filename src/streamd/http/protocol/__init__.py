"""HTTP as values: requests and responses, and how bytes become one and the other.

`messages` has requests and responses, the values that all other rooms exchange; `connections` what
a handler sees of its client's connection; `application` what adapters call; `refusals` the answers
to requests that fail. `heads` parses a head strictly and caches it, `routing` finds what a path
names, `fields` parses headers and queries, `wire` writes heads and reads framed bodies,
`compression` packs bodies, `sse` encodes events, and `cursors` keeps caches from answering live
reads.

It must never touch a socket or know a handler.
"""
