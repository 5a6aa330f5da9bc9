"""Handlers of the API of subscriptions (protocol sections 6 and 7).

`administering` makes, shows, lists and deletes subscriptions and wakes one as a test; `working`
serves workers that were woken: claim, acknowledgement, release, the callback of a webhook. `bodies`
are the bodies of all these, `views` makes them of records.

To administer or claim a subscription its sender needs a scope for all of its streams
(`access.subscribing`), to acknowledge the token of the wake. A sender cannot tell a subscription
that it may not use from one that does not exist.

Each write is one command; what it leads to, the machine decides (`streamd.streams`). Nothing is
kept here, so that any node serves any request.
"""
