"""Bytes between sockets and requests, each within a limit.

`transports` reads and writes a connection, plain or TLS; `batch_io` does it for many sockets in one
call (in C, or `batch_io_twin`). `incoming` receives bodies at a minimum pace, `outgoing` counts the
bytes that slow readers keep, `fair_limits` divides a limit fairly between clients, and
`descriptors` derives the most connections from the process's limit of files.

It must never wait without a limit in time, or buffer without one in bytes.
"""
