"""Access: the sender of a request, what they may do, and how often.

`authority` identifies the sender (tokens, signed URLs through `signatures`, JWTs, certificates) and
judges what the route `needs`; `rates` charges the request to the limits of its sender and bucket.
`page_guards` keep web pages of other origins away, and `auditor` records acts in the audit trail
before they happen.

It must never let a handler run for a request that was not judged.

Read on in docs/auth.md, docs/limits.md and docs/security.md.
"""
