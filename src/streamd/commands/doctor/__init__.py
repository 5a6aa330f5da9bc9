"""``streamd doctor``: what is wrong with a node before it starts, or with a running cluster.

`command` is the command line. `gathering` collects what there is to know into an `Examined`
(`findings`) from the nodes, each of which reports about itself, and `before_start` from this
machine. `table`
lists the checks, whose names are stable. The checks are functions from an `Examined` to findings,
a module for each group: `members`, `machine`, `secrecy`, `stores`. They do nothing but compare, so
they are tested without nodes, and a configuration and a running node are judged alike.

A doctor changes nothing: it writes and removes an object for tests in the cold store, as each start
of a node does, and before a start a file without a name in the data directory.
"""
