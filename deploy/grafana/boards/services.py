"""Services: is every process well?"""

from panels import Board, Panel, Query, Row

from boards.variables import OF_SERVICES, SERVICE, STARTS, WORKER

_WINDOW = "[$__rate_interval]"
# No room in the queue, and not taken by the collector.
_DROPS = [f"otel_sdk_{place}" for of in ("span", "log") for place in (f"processor_{of}_processed", f"exporter_{of}_exported")]


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
    description="Is every process well?",
    variables=[SERVICE, WORKER],
    annotations=[STARTS],
    rows=[
        Row(
            "Health",
            [
                Panel(
                    "Ready",
                    "1 while the process can do its work. One that is missing has ended or cannot reach the collector; one at 0 says why"
                    " in its log.",
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
                    "Alerts that fire",
                    "What each means and what to do: docs/observability.md.",
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
                    "In the time shown. A supervisor or Docker starts a process again; the run goes on. Repeated: its log's last line.",
                    [Query(f"sum by (instance) (resets(process_uptime_seconds{{{OF_SERVICES}}}[$__range]))", "{{instance}}", now=True)],
                    kind="bargauge",
                    unit="none",
                    width=8,
                    defaults={"decimals": 0, "min": 0},
                ),
                Panel(
                    "Groups sent to workers again",
                    "A second: a worker or its answer was lost, and the conductor dispatched again. Steady without restarts: workers are"
                    " too slow for the time a task is given.",
                    [
                        Query(
                            f'sum(rate(gradbus_groups_dispatched_total{{gradbus_dispatch="again"}}{_WINDOW}))',
                            "sent again",
                        ),
                        Query(f"sum(rate(gradbus_groups_abandoned_total{_WINDOW}))", "given up: version gone"),
                    ],
                ),
                Panel(
                    "Leases",
                    "Runs that conductors and trainers hold; and leases lost while held, because NATS was away or another took over.",
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
                    "Cores in use. An engine in a server of its own (SGLang) is not in it.",
                    [Query(f"sum by (instance) (rate(process_cpu_time_seconds_total{{{OF_SERVICES}}}{_WINDOW}))", "{{instance}}")],
                    unit="none",
                    width=12,
                    defaults={"min": 0},
                ),
                Panel(
                    "Memory",
                    "Physical. A line that only climbs ends at the container's limit, with status 137.",
                    [Query(f"sum by (instance) (process_memory_usage_bytes{{{OF_SERVICES}}})", "{{instance}}")],
                    unit="bytes",
                    width=12,
                    defaults={"min": 0},
                ),
            ],
        ),
        Row(
            "Wires, slowest twentieth",
            [
                Panel(
                    "REST by route",
                    "The gateway's answers. An event stream lasts as long as it is read.",
                    _slow("http_server_request_duration", "http_route", exemplars=False),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "gRPC by method",
                    "As the caller sees it. Diamonds open a trace.",
                    _slow("rpc_client_call_duration", "rpc_method"),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "Buffer by operation",
                    "`read_log` waits up to a second for news. Appends above 50 ms: the disk's fdatasync is slow.",
                    _slow("db_client_operation_duration", "db_operation_name", exemplars=False),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "NATS by operation",
                    "`receive` waits up to two seconds for tasks. Slow writes: the disk under JetStream.",
                    _slow("messaging_client_operation_duration", "messaging_operation_type"),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "Object storage by operation",
                    "Whole weights and deltas, archives, checkpoints.",
                    _slow("gradbus_wire_duration", "gradbus_operation"),
                    unit="s",
                    width=6,
                ),
                Panel(
                    "Bytes by wire",
                    "Put on or taken off, counted at every process.",
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
                    "A second. The collector is away, slow or refuses: the services drop what they cannot send and go on. Metrics are sent"
                    " again with the next ones.",
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
                    "Operations that failed",
                    "A second, by kind of error. Conflicts (`KeyWrongLastSequenceError`) and fencing are how owners are kept apart.",
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
