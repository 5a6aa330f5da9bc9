"""The whole audit: all jobs in one session, one verdict."""

from __future__ import annotations

from collections.abc import Sequence

from streamd_audit.chunks_job import chunks_job
from streamd_audit.log_job import log_job
from streamd_audit.runner import Job, run
from streamd_audit.state_job import state_job
from streamd_audit.tree_job import tree_job

JOBS: dict[str, Job] = {
    "audit_log": log_job,
    "audit_tree": tree_job,
    "replay_state": state_job,
    "audit_chunks": chunks_job,
}


def main(arguments: Sequence[str] | None = None) -> int:
    return run(JOBS, "Audit a cold store.", arguments)
