"""``df.write`` and ``df.writeStream`` to streams: each row once, whatever is run twice.

Spark runs a task again when it failed, runs a twin of a slow one, and runs the whole of a
micro-batch again when the driver died before it noted its end. What is promised of the rows is
that they are the same; their order is not, after a shuffle. So the producers of the protocol
(section 5.2.1) are half of the answer only: "request 3 of partition 5 in batch 7" must be the same
request each time. The other half is the *plan*:

- The **part** of a sink is one partition. It has a producer id, ``{sink id}.{partition}``, whose
  epoch is the micro-batch's number (`task`).
- A part has a **journal**, a stream of its own in which each record is an **entry**: some requests,
  each told as a stream and the digests of its rows. An attempt proposes an entry, under the
  producer id of the part and in order, *before* it sends what is in it. The first attempt to do so
  decides; others are told that it is a duplicate, read it, and follow it (`plan`).
- Every attempt sends the requests of the plan in its order, building them from the rows that it
  holds by their digests (`held`). Sequence numbers are counted along the plan, so the servers
  recognise whatever was appended before.

Rows that come in another order thus go where the first attempt put them. Rows that are not those of
the first attempt cannot be written exactly once by anybody: the task fails, and says so.

A zombie of an older batch cannot decide anything: its epoch is stale in the journal, 403. What it
may still send was decided before, and its batch is only over when all of that is appended.
"""
