"""``streamd`` as a client: what the command line does with a server over HTTP.

`names`, `lines`, `sse`, `multipart` and `messages` are pure; `transport` speaks HTTP and decides
what is tried again; `appending` and `following` are the two conversations that outlive a
connection; the commands put them together.
"""
