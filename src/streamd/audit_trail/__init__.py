"""The audit trail: who administered a node, and who was refused.

An *act* is a request that changes how a node or a cluster works, or who may use it. It has two
entries: ``asked`` is stored before anything happens, so that no act goes unrecorded, and ``done``
has the outcome. A *refusal* is an answer that denies a request to its sender. Acts wait for room
and for the disk; refusals never wait, and many of one kind become one entry (`refusals`).

`trail` has the queue and the task that writes, takes what only handlers know (`note`), and records
the acts of commands while a node is stopped; `sinks` and `stream_sink` are where to. What a
request's entry says is in `http.access.auditor`.

Read on: docs/operations.md (Audit trail), docs/decisions/026-no-act-without-its-entry.md.
"""
