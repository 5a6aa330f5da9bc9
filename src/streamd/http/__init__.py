"""HTTP: the servers, the handlers of requests, and the readers that follow streams live.

A request's life. `listeners` accepts a connection for `front_door.FrontDoor`, `reactor` tells it of
bytes (`batch_io`), and `connection` serves requests from them, by `connection_task` where it must
wait: `heads` parses a head strictly and caches it, `incoming` and `wire` receive the body within
its limits. HTTP/2 goes to Hypercorn instead (`hypercorn_server`, `hypercorn_connection`,
`http2_frames`), which calls `asgi`. Both adapters make the same `Request` (`messages`) and pass it
to `application`, which resolves the path (`routing`), finds the handler, and turns exceptions into
errors.

Handlers are functions from a `Service` and a `Request` to a `Response`: `reading` and `tailing`,
`writes` and `batches`, `buckets`, `snapshots`, `bootstrap`. They parse headers by `fields` and
`conditions`, propose commands to the group, and translate its outcomes into statuses. `ops` is an
ordinary Quart app for operators, reached by `asgi_bridge` and guarded by `admin_guard`; `openapi`
describes all of it. `stream_guard` keeps web pages away from streams.

A live read ends in `live.Hub`. A long-poll parks there and reads again when it is woken. An SSE
response catches up by reads, then parks, and the hub writes each change straight to its socket.
`sse` encodes the events, and `cursors` keeps caches from answering live reads.

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
  (`outgoing`), uploads and downloads (`shares`), connections (`descriptors`), readers, and the work
  of one turn of the loop.

It must never let a client block the event loop (large bodies are split and compressed in threads),
or let an exception of one request end another. An error of the storage ends the process.

Read on in docs/front-door.md, docs/api.md, docs/buckets-design.md and docs/snapshots-design.md.
"""
