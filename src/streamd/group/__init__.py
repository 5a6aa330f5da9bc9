"""One Raft group at work: the loop that joins the pure hearts to disk, clock and peers.

`group` is the loop; `proposals` and `read_index` are those who wait for it. `packages` are writes
of a node that it may send to the log again, in the session that `opening` gets; `forwarding` takes
them to the leader, and `drafts` makes entries of them. `state_flusher` and `retention` keep the
state behind the log and the log short; `sweeping`, `reclaim` and `pins` see to what time and
removal leave.
"""
