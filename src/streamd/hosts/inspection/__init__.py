"""What a process can find out about the machine, the files and the ports that a node depends on.

`facts` has the types: what was found, without a judgement. `machine` looks at limits and memory,
`disks` at file systems and the time that a sync takes, `certificates` and `files` at what the
configuration names, `ports` at addresses. `survey` does all of this for a configuration, and
changes nothing.

A running node gathers the facts about itself (`node.reports`), and `streamd doctor` those of a
configuration before a start. Both are judged by the same checks (`commands.doctor`), which need
neither a node nor a machine.
"""
