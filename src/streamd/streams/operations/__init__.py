"""Operations: changes of a running cluster in steps, replicated, carried on by any leader.

`model` has the record of an operation. `planning` makes the list of steps, and says of a record
and a view of the cluster what to do next. `changes` makes each next version of a record. `hosts`
is the type of what acts on hosts. The machine keeps the `records`, and the driver in
`streamd.node` carries them out: it records each attempt before it makes it, so that the next leader
knows what may have been done.
"""
