"""Services: is every process healthy?"""

from panels import Board, Panel, Query, Row

from boards.variables import OF_SERVICES, SERVICE, STARTS, WORKER

_WINDOW = "[$__rate_interval]"
# Dropped because the queue was full, and not accepted by the collector.
_DROPS = [f"otel_sdk_{stage}" for of in ("span", "log") for stage in (f"processor_{of}_processed", f"exporter_{of}_exported")]


def _slow(metric: str, by: str, exemplars: bool = True) -> list[Query]:
    return [
        Query(
            f"histogram_quantile(0.95, sum by (le, {by}) (rate({metric}_seconds_bucket{{{OF_SERVICES}}}{_WINDOW})))",
            "{{" + by + "}}",
            exemplars=exemplars,
        )
    ]


SERVICES = Board(
    uid="gradbus-services",
    title="Gradbus / Services",
    description="Is every process healthy?",
    variables=[SERVICE, WORKER],
    annotations=[STARTS],
    rows=[
        Row(
            "Health",
            [
                Panel(
                    "Ready",
                    "1 while the process is ready. A missing process has ended or cannot reach the collector; the log of a process at 0"
                    " says why.",
                    [Query(f"max by (job, instance) (gradbus_process_ready{{{OF_SERVICES}}})", "{{instance}}", now=True)],
                    kind="stat",
                    unit="none",
                    width=16,
                    height=6,
                    defaults={
                        "color": {"mode": "thresholds"},
                        "mappings": [
                            {"type": "value", "options": {"0": {"text": "not ready", "index": 0}, "1": {"text": "ready", "index": 1}}}
                        ],
                        "thresholds": {"mode": "absolute", "steps": [{"color": "red", "value": None}, {"color": "green", "value": 1}]},
                    },
                    options={"graphMode": "none", "colorMode": "background"},
                ),
                Panel(
                    "Firing alerts",
                    "Meaning and remedy of each alert: docs/observability.md.",
                    [Query('ALERTS{alertstate="firing"}', "{{alertname}} {{gradbus_run_id}}{{instance}}", now=True)],
                    kind="stat",
                    unit="none",
                    width=8,
                    height=6,
                    options={"textMode": "name", "graphMode": "none", "colorMode": "background"},
                    defaults={"color": {"mode": "fixed", "fixedColor": "red"}, "noValue": "none"},
                ),
                Panel(
                    "Restarts",
                    "In the time range. The supervisor or Docker restarts a process and the run goes on. If restarts repeat, read the"
                    " end of its log.",
                    [Query(f"sum by (instance) (resets(process_uptime_seconds{{{OF_SERVICES}}}[$__range]))", "{{instance}}", now=True)],
                    kind="bargauge",
                    unit="none",
                    width=8,
                    defaults={"decimals": 0, "min": 0},
                ),
                Panel(
                    "Groups dispatched again",
                    "Per second: a worker or its answer was lost, and the conductor dispatched the group again. A steady rate without"
                    " restarts means that workers are too slow for the time limit of a task.",
                    [
                        Query(
                            f'sum(rate(gradbus_groups_dispatched_total{{gradbus_dispatch="again"}}{_WINDOW}))',
                            "dispatched again",
                        ),
                        Query(f"sum(rate(gradbus_groups_abandoned_total{_WINDOW}))", "abandoned: version gone"),
                    ],
                ),
                Panel(
                    "Leases",
                    "Runs leased by conductors and trainers, and leases lost because NATS was unreachable or another process took over.",
                    [
                        Query("sum by (gradbus_lease) (gradbus_leases_held)", "{{gradbus_lease}}"),
                        Query("sum(increase(gradbus_leases_lost_total[$__rate_interval]))", "lost"),
                    ],
                    unit="none",
                ),
            ],
        ),
        Row(
            "Resources",
            [
                Panel(
                    "Processor",
                    "Cores in use, without an engine that runs as a separate server (SGLang).",
                    [Query(f"sum by (instance) (rate(process_cpu_time_seconds_total{{{OF_SERVICES}}}{_WINDOW}))", "{{instance}}")],
                    unit="none",
                    width=8,
                    defaults={"min": 0},
                ),
                Panel(
                    "Memory",
                    "Physical memory. A process that keeps growing is killed at the container's limit, with status 137.",
                    [Query(f"sum by (instance) (process_memory_usage_bytes{{{OF_SERVICES}}})", "{{instance}}")],
                    unit="bytes",
                    width=8,
                    defaults={"min": 0},
                ),
                Panel(
                    "Refused by the gateway",
                    "Requests and connections per second, by the limit that they met. The gateway's log names a key or an address; "
                    "docs/limits.md says which setting to change.",
                    [Query(f"sum by (gradbus_refusal_cause) (rate(gradbus_gateway_refusals_total{_WINDOW}))", "{{gradbus_refusal_cause}}")],
                    width=8,
                    defaults={"min": 0},
                ),
            ],
        ),
        Row(
            "Operations, 95th percentile",
            [
                Panel(
                    "REST by route",
                    "Requests to the gateway. An event stream lasts as long as its reader stays.",
                    _slow("http_server_request_duration", "http_route", exemplars=False),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "gRPC by method",
                    "Measured by the client. Diamonds open a trace.",
                    _slow("rpc_client_call_duration", "rpc_method"),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "Buffer by operation",
                    "`read_log` waits up to a second for entries. Appends above 50 ms mean that the disk's fdatasync is slow.",
                    _slow("db_client_operation_duration", "db_operation_name", exemplars=False),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "NATS by operation",
                    "`receive` waits up to two seconds for tasks. Slow writes come from the disk under JetStream.",
                    _slow("messaging_client_operation_duration", "messaging_operation_type"),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "Object storage by operation",
                    "Whole weights, deltas, archives and checkpoints.",
                    _slow("gradbus_wire_duration", "gradbus_operation"),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "Bytes by wire",
                    "Sent and received, counted in every process.",
                    [
                        Query(
                            f"sum by (gradbus_wire) (rate(gradbus_wire_payload_bytes_total{{{OF_SERVICES}}}{_WINDOW}))", "{{gradbus_wire}}"
                        )
                    ],
                    unit="Bps",
                    width=6,
                ),
                Panel(
                    "Spans and log lines dropped",
                    "Per second. When the collector is unreachable, slow or refuses data, services drop spans and log lines and go on."
                    " Metrics are complete again with the next export.",
                    [
                        Query(
                            "sum by (instance) ("
                            + " or ".join(f'rate({name}_total{{{OF_SERVICES}, error_type!=""}}{_WINDOW})' for name in _DROPS)
                            + ")"
                        )
                    ],
                    width=6,
                ),
                Panel(
                    "Failed operations",
                    "Per second, by kind of error. Conflicts (`KeyWrongLastSequenceError`) and fencing errors are normal: they keep owners"
                    " apart.",
                    [
                        Query(
                            "sum by (error_type) ("
                            + " or ".join(
                                f'rate({metric}_seconds_count{{{OF_SERVICES}, error_type!=""}}{_WINDOW})'
                                for metric in (
                                    "rpc_client_call_duration",
                                    "db_client_operation_duration",
                                    "messaging_client_operation_duration",
                                    "gradbus_wire_duration",
                                )
                            )
                            + ")",
                            "{{error_type}}",
                        )
                    ],
                    width=6,
                ),
            ],
        ),
    ],
)
