"""HTTP: the servers, the handlers of requests, and the readers that follow streams live.

The rooms, from the outside in; each imports only those below it.

- `routes` is the table of all routes: method, path, handler, scopes, description. `router` derives
  from it which routes a path has, Allow and preflight answers, and the OpenAPI document.
- `application` admits a request, calls its handler and answers what that raises. `dispatcher`
  does so for requests that need not wait, also in a worker. `ops` is the Quart application that
  calls the handlers of operations.
- `openapi/`: the descriptions of the routes, and the document that is made of them.
- `admin/`, `streams/`, `subscriptions/`: the handlers, functions from a `Service` and a `Request`
  to a `Response`. They propose commands to the group and translate its outcomes into statuses.
- `access/`: who sends a request, what they may do, how often.
- `http2/` and `door/`: two adapters, Hypercorn's for HTTP/2 and the front door for HTTP/1.1. Both
  make the same `Request` and pass it to the application.
- `sockets/`: bytes in and out, within limits.
- `console/`: the files of the console, and the policy of its page.
- `credentials/`: certificates and keys from outside: files, TLS handshakes, identity providers.
- `protocol/`: requests and responses as values, parsed strictly; `refusals` is where exceptions of
  other parts become problems (`streamd.protocol.problems`).

A live read ends in `streams.live.Hub`. A long-poll parks there and reads again when it is woken. An
SSE response catches up by reads, then parks, and the hub writes each change straight to its socket.

Invariants:

- No answer leaves before the group has decided: 2xx for a write means committed and applied, and a
  503 says whether the write may still take effect (`UNAVAILABLE`: no; `OUTCOME_UNKNOWN`: maybe).
- A read is linearizable unless it asks for `consistency=local` (`Service.catch_up`). Across an
  `await` a handler keeps nothing of the state but immutable bytes: streams in the state change in
  the meantime, and a handler that needs one value of a stream copies it.
- A reader parks in the same turn of the loop in which it saw the tail, so it misses no change, and
  it gets each change once, in order, whether the hub or its own task writes it.
- Both adapters refuse the same requests with the same codes, and repair none.
- Everything that a client can make the server hold has a limit: heads, bodies, answers
  (`sockets.outgoing`), uploads and downloads (`sockets.fair_limits`), connections
  (`sockets.descriptors`), readers, and the work of one turn of the loop.

It must never let a client block the event loop (large bodies are split and compressed in threads),
or let an exception of one request end another. An error of the storage ends the process.

Read on in docs/front-door.md, docs/api.md, docs/buckets-design.md and docs/snapshots-design.md.
"""
