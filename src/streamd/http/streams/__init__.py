"""The handlers of streams and buckets: functions from a `Service` and a `Request` to a `Response`.

`reading` and `tailing` read, `live` keeps the readers that wait, `writes`, `batches` and
`large_writes` append, `buckets` lists, `snapshots` and `bootstrap` store and serve snapshots.
`service` has what a handler needs of the node, and words refusals by quotas; `recent_answers` keeps
answers to repeated reads.

It must never know which adapter a request came through.

Read on in docs/api.md, docs/reads.md and docs/snapshots-design.md.
"""
