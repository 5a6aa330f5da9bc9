"""``df.write`` and ``df.writeStream`` to streams: each row once, whatever is run twice.

Spark runs a task again when it failed, runs a twin of a slow one, and repeats a whole micro-batch
when the driver died before it noted the end. It promises that the rows are the same; after a
shuffle their order is not. So the producers of the protocol (section 5.2.1) are only half of the
answer: "request 3 of partition 5 in batch 7" must be the same request each time. The other half is
the *plan*:

- A **part** of a sink is one partition. It has a producer id, ``{sink id}.{partition}``, whose
  epoch is the micro-batch's number (`task`).
- A part has a **journal**, a stream of its own in which each record is an **entry**: some requests,
  each described by its stream and the digests of its rows. An attempt proposes an entry, under the
  producer id of the part and in order, *before* it sends the entry's requests. The first attempt to
  do so decides; others learn that theirs is a duplicate, read the entry, and follow it (`plan`).
- Every attempt sends the requests of the plan in its order, and builds them from the rows that it
  holds, found by their digests (`held`). Sequence numbers are counted along the plan, so the
  servers recognise everything that was appended before.

So rows that arrive in another order go where the first attempt put them. Rows that differ from the
first attempt's cannot be written exactly once by any means: the task fails, and says so.

A zombie of an older batch cannot decide anything: its epoch is stale in the journal, 403. Whatever
it may still send was decided before, and its batch only ends when all of that is appended.
"""
