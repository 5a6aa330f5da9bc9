"""Write fencing: the workers of a subscription write only under their present claim.

`fences` are the values and the rules of a stream's fence, without streams. `seals` keeps in the
state: the end of a claim is noted at the subscription, and each of its streams notes it before its
tail next moves. `write_fences` judges an append by it.

Invariants:

- Once a claim has ended, nothing is written under it on any stream of its subscription.
- The end of a claim costs the same however many streams it reaches.

Read on: docs/write-fencing.md.
"""
