"""``streamd`` as a client: the commands that work with streams over HTTP, and what they share.

The life of a command: `options` makes a `transport.Server` from ``--url``, ``--cacert`` and
``--retry-for`` and passes it to the command; the command asks the server and writes bytes to
standard output; `terminal` turns what went wrong into one sentence on standard error and one of
the documented exit statuses. `streamd.commands` and `streamd.spark` use the same `Server`.

Requests. `transport` alone speaks HTTP. `Server.ask` tries until there is an answer: it waits with
growing pauses (`Backoff`), asks the next node of the list when one cannot be reached, follows
redirects to the leader, and gives up after the time for retries. `Server.attempt` is one try, for
answers that are read as they arrive. `Server.ask_once` is for what must not happen twice.

Appends. A lost answer leaves open whether the append took effect, so `appending.Producer` numbers
each body (protocol section 5.2.1) and repeats it with the same number until it is answered; the
server stores it once. `lines` cuts standard input into bodies: pieces of bytes, or batches of
complete lines that do not wait for more input.

Reads. `following.read` yields pieces up to the present end. `following.follow` goes on from there
by server-sent events or long-polls, over as many connections as it takes. Each piece carries the
offset after it, and a new connection starts at the offset of the last complete piece.

What is pure and what acts: `names`, `sse`, `multipart`, `messages` and the batches of `lines` are
functions of their input and do no I/O. `writing`, `reading`, `managing` and `snapshots` are the
commands; `bootstrapping` is where a bootstrap's messages go.

Invariants:

- Nothing is shown twice or left out, whatever is killed: data counts only with the offset after it.
- A body is stored once, however often it is sent.
- Memory is bounded: an event, an answer, a line, a part's head and the kept last lines have limits.
  Bodies of any size are passed on in pieces.
- An address that never answered is not retried unless ``--retry-for`` asks for it.
- Messages never show credentials of a URL (`streamd.redaction`).

The client must never import the server (a command would start as slowly as a node), write anything
but data to standard output, or parse what it need not: JSON passes through digit for digit.

Read on: man/streamd-client.1 for the commands, docs/api.md for the requests they make,
docs/decisions/ for why the parsers of `sse` and `multipart` are our own.
"""
