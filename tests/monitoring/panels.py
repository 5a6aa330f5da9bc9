"""What the dashboards for Grafana show: a panel for each question, in rows.

A panel's expressions name metrics of a node as it exports them; `{selected}` stands for the labels
by which a dashboard's variables choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Panel:
    """Lines over time: each of `queries` is an expression and the legend of its series."""

    title: str
    unit: str  # as Grafana names it
    queries: Sequence[tuple[str, str]]
    about: str = ""


@dataclass(frozen=True)
class Dashboard:
    """Rows of panels; `selection` is what stands for `{selected}`."""

    uid: str
    title: str
    selection: str
    has_instance: bool
    rows: Sequence[tuple[str, Sequence[Panel]]]


def _rate(metric: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({metric}{{selected}}[$__rate_interval]))"


def _quantile(metric: str, q: float, by: str = "instance") -> str:
    return f"histogram_quantile({q:g}, {_rate(metric + '_bucket', f'le, {by}')})"


def _latency(metric: str) -> list[tuple[str, str]]:
    return [(_quantile(metric, q), f"{{{{instance}}}} p{q * 100:g}") for q in (0.5, 0.99)]


_N = "{{instance}}"
_PEER = "{{instance}} to {{peer}}"

CLUSTER = Dashboard(
    "streamd-cluster",
    "streamd: cluster",
    'cluster=~"$cluster"',
    False,
    (
        (
            "Does it serve?",
            (
                Panel("Ready nodes", "short", [("sum(streamd_ready{selected})", "ready")]),
                Panel("Role (3 leads)", "short", [("streamd_raft_role{selected}", _N)]),
                Panel(
                    "Term",
                    "short",
                    [("max(streamd_raft_term{selected})", "term")],
                    "Each step is an election.",
                ),
                Panel(
                    "Unknown outcomes",
                    "ops",
                    [(_rate("streamd_outcomes_unknown_total"), _N)],
                ),
            ),
        ),
        (
            "What do clients get?",
            (
                Panel(
                    "Requests by status",
                    "reqps",
                    [(_rate("streamd_http_requests_total", "status"), "{{status}}")],
                ),
                Panel(
                    "Requests by route and method",
                    "reqps",
                    [
                        (
                            _rate("streamd_http_requests_total", "route, method"),
                            "{{method}} {{route}}",
                        )
                    ],
                ),
                Panel("Append latency", "s", _latency("streamd_append_latency_seconds")),
                Panel(
                    "Bytes of clients",
                    "Bps",
                    [
                        (_rate("streamd_http_received_bytes_total", "job"), "received"),
                        (_rate("streamd_http_sent_bytes_total", "job"), "sent"),
                    ],
                ),
                Panel(
                    "Live readers",
                    "short",
                    [("sum by (mode) (streamd_live_readers{selected})", "{{mode}}")],
                ),
                Panel("Streams", "short", [("max(streamd_streams{selected})", "streams")]),
            ),
        ),
        (
            "Are workers woken?",
            (
                Panel(
                    "Subscriptions",
                    "short",
                    [("max by (state) (streamd_subscriptions{selected})", "{{state}}")],
                    "All nodes know all of them.",
                ),
                Panel(
                    "Oldest wake without a worker",
                    "s",
                    [("max(streamd_subscription_oldest_wake_seconds{selected})", "age")],
                ),
                Panel(
                    "Webhooks",
                    "ops",
                    [(_rate("streamd_webhook_deliveries_total", "outcome"), "{{outcome}}")],
                    "What has become of the leader's attempts.",
                ),
                Panel(
                    "Streams with pending records",
                    "short",
                    [("max(streamd_subscription_pending_streams{selected})", "streams")],
                    "A stream counts once for each subscription.",
                ),
            ),
        ),
        (
            "Do the nodes keep up?",
            (
                Panel(
                    "Entries that followers lack",
                    "short",
                    [("streamd_peer_behind_entries{selected}", "{{peer}}")],
                ),
                Panel(
                    "Last contact of the leader",
                    "s",
                    [("streamd_peer_last_contact_seconds{selected}", "{{peer}}")],
                ),
                Panel(
                    "Connections between nodes",
                    "short",
                    [("streamd_peer_connected{selected}", _PEER)],
                ),
                Panel("Applied entries", "short", [("streamd_raft_applied_index{selected}", _N)]),
                Panel("Synced writes", "s", _latency("streamd_fsync_latency_seconds")),
                Panel("Free disk", "bytes", [("streamd_disk_free_bytes{selected}", _N)]),
            ),
        ),
        (
            "The cold store and the archive",
            (
                Panel(
                    "Bytes not in the store yet, and their limit",
                    "bytes",
                    [
                        ("max(streamd_cold_hot_bytes{selected})", "hot"),
                        ("min(streamd_cold_hot_limit_bytes{selected})", "limit"),
                    ],
                ),
                Panel("Bytes in the store", "bytes", [("max(streamd_cold_bytes{selected})", "")]),
                Panel("Store away", "short", [("streamd_cold_unavailable{selected}", _N)]),
                Panel(
                    "Failed rounds",
                    "ops",
                    [(_rate("streamd_cold_failures_total", "task"), "{{task}}")],
                ),
                Panel("Archive lag", "s", [("streamd_archive_lag_seconds{selected}", _N)]),
                Panel(
                    "Alarms of the archive",
                    "short",
                    [("max by (alarm) (streamd_archive_alarm{selected})", "{{alarm}}")],
                ),
                Panel(
                    "Objects missing or damaged",
                    "short",
                    [
                        ("max(streamd_cold_missing_objects{selected})", "missing"),
                        ("max(streamd_cold_damaged_objects{selected})", "damaged"),
                    ],
                ),
                Panel(
                    "Since the newest checkpoint",
                    "s",
                    [("time() - streamd_archive_last_snapshot_time_seconds{selected}", _N)],
                ),
            ),
        ),
    ),
)

NODE = Dashboard(
    "streamd-node",
    "streamd: node",
    'instance=~"$instance"',
    True,
    (
        (
            "The process",
            (
                Panel("Event loop late by", "s", _latency("streamd_loop_lag_seconds")),
                Panel(
                    "Pauses of the garbage collector",
                    "s",
                    [(_rate("streamd_gc_pause_seconds_sum"), _N)],
                    "Seconds of each second.",
                ),
                Panel("Processor", "percentunit", [(_rate("process_cpu_seconds_total"), _N)]),
                Panel("Memory", "bytes", [("process_resident_memory_bytes{selected}", _N)]),
                Panel(
                    "Open files and their limit",
                    "short",
                    [
                        ("process_open_fds{selected}", _N),
                        ("process_max_fds{selected}", "limit"),
                    ],
                ),
                Panel("Suppressed log lines", "short", [("streamd_log_suppressed{selected}", _N)]),
                Panel(
                    "Release",
                    "short",
                    [("streamd_build_info{selected}", "{{version}} on Python {{python}}")],
                ),
            ),
        ),
        (
            "Log and disk",
            (
                Panel("Synced writes", "s", _latency("streamd_fsync_latency_seconds")),
                Panel(
                    "Waits for the journal",
                    "s",
                    [(_rate("streamd_log_stall_seconds_sum"), _N)],
                    "Seconds of each second.",
                ),
                Panel(
                    "Commands in an entry",
                    "short",
                    [(_quantile("streamd_commit_batch_commands", 0.5), "p50")],
                ),
                Panel(
                    "Free disk, and its limit",
                    "bytes",
                    [
                        ("streamd_disk_free_bytes{selected}", "free"),
                        ("streamd_disk_min_free_bytes{selected}", "limit"),
                    ],
                ),
                Panel(
                    "Committed and applied",
                    "short",
                    [
                        ("streamd_raft_commit_index{selected}", "committed"),
                        ("streamd_raft_applied_index{selected}", "applied"),
                    ],
                ),
            ),
        ),
        (
            "Clients",
            (
                Panel(
                    "Requests",
                    "reqps",
                    [
                        (
                            _rate("streamd_http_requests_total", "route, method, status"),
                            "{{method}} {{route}} {{status}}",
                        )
                    ],
                ),
                Panel("Append latency", "s", _latency("streamd_append_latency_seconds")),
                Panel(
                    "Connections",
                    "short",
                    [
                        ("streamd_http_connections{selected}", "clients"),
                        ("streamd_admin_connections{selected}", "operators"),
                    ],
                ),
                Panel("Live readers", "short", [("streamd_live_readers{selected}", "{{mode}}")]),
                Panel(
                    "Refused by limits",
                    "reqps",
                    [
                        (_rate("streamd_rate_limited_total", "limit"), "{{limit}}"),
                        (_rate("streamd_quota_refusals_total", "result"), "{{result}}"),
                    ],
                ),
                Panel(
                    "Certificates expire in",
                    "s",
                    [
                        (
                            "streamd_tls_certificate_expiry_time_seconds{selected} - time()",
                            "{{section}}",
                        )
                    ],
                ),
            ),
        ),
        (
            "Peers",
            (
                Panel("Connected", "short", [("streamd_peer_connected{selected}", "{{peer}}")]),
                Panel(
                    "Bytes",
                    "Bps",
                    [
                        (_rate("streamd_peer_sent_bytes_total", "peer"), "to {{peer}}"),
                        (_rate("streamd_peer_received_bytes_total", "peer"), "from {{peer}}"),
                    ],
                ),
                Panel(
                    "Dropped messages",
                    "ops",
                    [(_rate("streamd_peer_dropped_messages_total", "peer"), "{{peer}}")],
                ),
                Panel(
                    "Refused of peers",
                    "ops",
                    [(_rate("streamd_peer_refused_total", "what"), "{{what}}")],
                ),
                Panel(
                    "Packages sent again",
                    "ops",
                    [(_rate("streamd_packages_resent_total"), _N)],
                ),
            ),
        ),
        (
            "The cold store",
            (
                Panel("Work", "ops", [(_rate("streamd_cold_total", "what"), "{{what}}")]),
                Panel("Failing tasks", "short", [("streamd_cold_failing{selected}", "{{task}}")]),
                Panel(
                    "Flushed bytes on this disk",
                    "bytes",
                    [("streamd_cold_kept_bytes{selected}", "")],
                ),
                Panel("Read cache", "bytes", [("streamd_cold_cache_bytes{selected}", "")]),
            ),
        ),
    ),
)

DASHBOARDS = (CLUSTER, NODE)
