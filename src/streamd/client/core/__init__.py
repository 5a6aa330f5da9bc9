"""The client without I/O: flows, which `driving` and `async_driving` carry out.

A flow is a generator. It yields steps (`steps`): a request to send, a pause, a value for the
caller. The driver carries out each step and sends the result back in; a connection that fails comes
in as `Lost`. So every rule about what is sent, when, how often and to which node is written once,
and tests can play the server.

`retrying` decides about tries: nodes, pauses, redirects, and which requests may be repeated.
`operations` are single requests, `streams` those of one stream. `reading` follows a stream over any
number of connections and resumes after the last complete piece, and `messages` makes values of what
it reads. `producing` numbers batches so that each is stored once (protocol section 5.2.1).
`consuming` reads on from the position that `keeping` keeps. `snapshots` reads snapshots, bootstraps
and states. `subscribing` are requests about subscriptions, `waking` holds a wake and waits for the
next, and `receiving` keeps the keys that verify webhooks.

Invariants:

- A request that must not happen twice is repeated only if it cannot have taken effect.
- Data counts only with the offset after it: a break loses nothing and shows nothing twice.
- Credentials go to the origins that the caller named, and to no other.

The core imports neither httpx nor an event loop, and reads no clock but the session's.
"""
