"""One Raft group at work: the loop that joins the pure hearts to disk, clock and peers.

`group` is the loop; `proposals` and `barriers` are those who wait for it. `storing` and
`retention` keep the state behind the log and the log short; `sweeping`, `reclaim` and `pins` see to
what time and removal leave behind.
"""
