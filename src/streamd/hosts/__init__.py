"""The machines that nodes run on: what is found out about them, and what is done to nodes there.

Nodes are started, stopped and restarted, and releases installed:

`templates` makes the list of arguments of a command from the configuration's section
``[supervisor]`` and checked values, so that none can become an option or another command;
`commands` says which command each kind of supervisor has for a deed; `running` runs one, with a
limit on its time and its output, and ends it when it is cancelled. No shell is between, but for the
one at the other end of ssh, whose words are quoted.

`inspection/` finds out what a node depends on: limits, disks, certificates, ports.

Read on in docs/operations.md.
"""
