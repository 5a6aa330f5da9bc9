"""Workers: processes that share the work of the front door, on as many cores.

With ``server.workers`` = N, the process that has the group (node, Raft, disks, peers) starts N
workers. Each has a front door at the same port, and a Unix socket to the group's process that
nobody else can open (`link`). `supervisor` starts and watches them.

- A worker judges plain writes by the handlers' own functions, which need no state, and sends their
  commands in batches; `desk` proposes them and sends back the outcomes.
- It answers a read again until the stream changes (`versions`).
- It forwards everything else whole. The group's process answers as ever; the response comes back
  whole or in pieces. An event for a thousand live readers crosses the socket once.

Invariants:

- No rule exists twice: a worker has no view of streams, only answers that the group's process made.
- A read through any worker sees every write that was acknowledged before the read began.
- A worker that dies or is stopped costs its own clients their connections, nobody else anything.
- Workers do not outlive the group's process.

Read on: docs/workers.md.
"""
