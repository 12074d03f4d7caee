"""Cluster: has Kubernetes given each role what it needs? Most of its metrics come from exporters of the cluster (`exporters.json`)."""

from typing import Any

from panels import Board, Panel, Query, Row, Variable

from boards.variables import STARTS

_WINDOW = "[$__rate_interval]"
_HERE = 'namespace="$namespace"'
_NAMESPACE = Variable("namespace", "Namespace", 'label_values(kube_pod_container_info{container="conductor"}, namespace)', several=False)
_CONTAINERS = f'{_HERE}, container!="", container!="POD"'
_BAR: dict[str, Any] = {"min": 0, "decimals": 0}
_SHARE: dict[str, Any] = {
    "min": 0,
    "max": 1,
    "color": {"mode": "thresholds"},
    "thresholds": {
        "mode": "absolute",
        "steps": [{"color": "red", "value": None}, {"color": "orange", "value": 0.1}, {"color": "green", "value": 0.25}],
    },
}


def _replicas(said: str, asked: str, kind: str) -> str:
    """Pods that are missing, by the name of their set, which is the role's."""
    missing = f"sum by ({kind}) ({asked}{{{_HERE}}}) - sum by ({kind}) ({said}{{{_HERE}}})"
    return f"clamp_min({missing}, 0)"


def _beside(use: str, resource: str) -> list[Query]:
    """Use, requests and limits of all pods of a role."""
    return [
        Query(use, "{{container}}"),
        *(
            Query(
                f'sum by (container) (kube_pod_container_resource_{bound}{{{_HERE}, resource="{resource}"}})', f"{{{{container}}}} {bound}"
            )
            for bound in ("requests", "limits")
        ),
    ]


_PODS = Row(
    "Pods",
    [
        Panel(
            "Ready pods by role",
            "Ready pods of each Deployment and StatefulSet, which have the names of roles. Needs kube-state-metrics.",
            [
                Query(f"sum by (deployment) (kube_deployment_status_replicas_ready{{{_HERE}}})", "{{deployment}}", now=True),
                Query(f"sum by (statefulset) (kube_statefulset_status_replicas_ready{{{_HERE}}})", "{{statefulset}}", now=True),
            ],
            kind="stat",
            unit="none",
            width=12,
            options={"graphMode": "none"},
        ),
        Panel(
            "Missing pods by role",
            "Pods that a role should have and that are not ready. `python -m gradbus.deploy diagnose` names the cause of each. "
            "Needs kube-state-metrics.",
            [
                Query(
                    _replicas("kube_deployment_status_replicas_ready", "kube_deployment_spec_replicas", "deployment"),
                    "{{deployment}}",
                ),
                Query(
                    _replicas("kube_statefulset_status_replicas_ready", "kube_statefulset_replicas", "statefulset"),
                    "{{statefulset}}",
                ),
            ],
            unit="none",
            width=12,
            defaults=_BAR,
        ),
        Panel(
            "Pods that wait",
            "Containers that cannot start, by reason, and pods without a node. docs/kubernetes.md has what to do for each reason. "
            "Needs kube-state-metrics.",
            [
                Query(f"sum by (reason) (kube_pod_container_status_waiting_reason{{{_HERE}}})", "{{reason}}"),
                Query(f"sum(kube_pod_status_unschedulable{{{_HERE}}})", "without a node"),
            ],
            unit="none",
            defaults=_BAR,
        ),
        Panel(
            "Restarts by role",
            "In the time range. The run goes on; if restarts repeat, read `kubectl logs --previous`. Needs kube-state-metrics.",
            [
                Query(
                    f"sum by (container) (increase(kube_pod_container_status_restarts_total{{{_HERE}}}[$__range])) > 0",
                    "{{container}}",
                    now=True,
                )
            ],
            kind="bargauge",
            unit="none",
            defaults=_BAR,
        ),
        Panel(
            "Containers that ended with an error",
            "Containers by the reason of their last end. `OOMKilled`: raise the role's memory limit, or submit smaller runs. Needs "
            "kube-state-metrics.",
            [
                Query(
                    f'sum by (container, reason) (kube_pod_container_status_last_terminated_reason{{{_HERE}, reason!="Completed"}})',
                    "{{container}}: {{reason}}",
                )
            ],
            unit="none",
            defaults=_BAR,
        ),
    ],
)
_RESOURCES = Row(
    "Resources of roles",
    [
        Panel(
            "Processor beside requests and limits",
            "Cores of all pods of a role. Above its request a role depends on what others leave; at its limit it is slowed. Needs "
            "cAdvisor and kube-state-metrics.",
            _beside(f"sum by (container) (rate(container_cpu_usage_seconds_total{{{_CONTAINERS}}}{_WINDOW}))", "cpu"),
            unit="none",
            width=12,
            height=10,
            defaults={"min": 0},
        ),
        Panel(
            "Memory beside requests and limits",
            "Working set of all pods of a role. A container at its limit is killed: raise the limit before. Needs cAdvisor and "
            "kube-state-metrics.",
            _beside(f"sum by (container) (container_memory_working_set_bytes{{{_CONTAINERS}}})", "memory"),
            unit="bytes",
            width=12,
            height=10,
            defaults={"min": 0},
        ),
        Panel(
            "Free space of volumes",
            "Share of each claim that is free. NATS and the buffer stop taking writes on a full volume: let the claim grow, or "
            "delete runs. Needs the kubelet's metrics.",
            [
                Query(
                    f"sum by (persistentvolumeclaim) (kubelet_volume_stats_available_bytes{{{_HERE}}})"
                    f" / sum by (persistentvolumeclaim) (kubelet_volume_stats_capacity_bytes{{{_HERE}}})",
                    "{{persistentvolumeclaim}}",
                    now=True,
                )
            ],
            kind="bargauge",
            unit="percentunit",
            width=24,
            defaults=_SHARE,
        ),
    ],
)
_NODES = Row(
    "Nodes",
    [
        Panel(
            "Nodes in trouble",
            "Nodes that are not ready, report pressure of memory, disk or processes, or take no pods. Pods are evicted from a node "
            "under pressure. Needs kube-state-metrics.",
            [
                Query(
                    'sum by (condition) (kube_node_status_condition{condition!="Ready", status="true"})',
                    "{{condition}}",
                ),
                Query('sum(kube_node_status_condition{condition="Ready", status!="true"})', "not ready"),
                Query("sum(kube_node_spec_unschedulable)", "cordoned"),
            ],
            unit="none",
            defaults=_BAR,
        ),
        Panel(
            "Waiting for a resource",
            "Share of the time in which some task of a node waits for processor, memory or disk. A steady share above a tenth slows "
            "every pod there. Needs node-exporter.",
            [
                Query(f"max by (instance) (rate(node_pressure_{kind}_waiting_seconds_total{_WINDOW}))", f"{{{{instance}}}} {name}")
                for kind, name in (("cpu", "processor"), ("memory", "memory"), ("io", "disk"))
            ],
            unit="percentunit",
            defaults={"min": 0},
        ),
        Panel(
            "Error of clocks",
            "How far each node's clock is from its time server. Runs do not depend on it, but certificates and times that people "
            "read do: fix the node's"
            " time service above a second. Needs node-exporter.",
            [Query("max by (instance) (node_timex_offset_seconds)", "{{instance}}")],
            unit="s",
        ),
    ],
)
_STATE = Row(
    "NATS and buffer",
    [
        Panel(
            "Servers of NATS",
            "Servers with JetStream, and those that call themselves leader of all: three and one. With fewer than two of three "
            "servers no state can be"
            " written. Needs prometheus-nats-exporter with `-jsz=streams`.",
            [
                Query("sum(jetstream_server_jetstream_disabled == bool 0)", "servers"),
                Query('count(jetstream_server_jetstream_disabled{is_meta_leader="true"}) or vector(0)', "leaders"),
            ],
            unit="none",
            width=6,
            defaults=_BAR,
        ),
        Panel(
            "Streams by leader",
            "Streams that each server leads. A stream whose leader has no name waits for an election. Needs prometheus-nats-exporter.",
            [Query("count by (stream_leader) (max by (stream_leader, stream_name) (jetstream_stream_last_seq))", "{{stream_leader}}")],
            unit="none",
            width=6,
            defaults=_BAR,
        ),
        Panel(
            "Lag of replicas",
            "Messages by which a stream's last replica is behind its first. It falls to 0 after a server came back; if it does not, "
            "look at that"
            " server's log and volume. Needs prometheus-nats-exporter.",
            [
                Query(
                    "max by (stream_name) (jetstream_stream_last_seq) - min by (stream_name) (jetstream_stream_last_seq)",
                    "{{stream_name}}",
                )
            ],
            width=6,
            defaults={"min": 0},
        ),
        Panel(
            "Bytes in NATS by server",
            "State and tasks that each server stores. Needs prometheus-nats-exporter.",
            [Query("sum by (server_name) (jetstream_server_total_message_bytes)", "{{server_name}}")],
            unit="bytes",
            width=6,
            defaults={"min": 0},
        ),
        Panel(
            "Buffer is there",
            "1 while the buffer answers and its last write reached the disk. At 0 runs stand still and go on when it is back: look "
            "at its volume. Needs redis_exporter.",
            [
                Query("min by (instance) (redis_up)", "{{instance}} answers"),
                Query("min by (instance) (redis_aof_last_write_status)", "{{instance}} writes"),
            ],
            unit="none",
            defaults={"min": 0, "max": 1},
        ),
        Panel(
            "Memory and clients of the buffer",
            "Groups that wait to be trained lie in memory: it grows with runs and with how far workers are ahead. Needs redis_exporter.",
            [
                Query("max by (instance) (redis_memory_used_bytes)", "{{instance}} bytes"),
                Query("max by (instance) (redis_connected_clients)", "{{instance}} clients"),
            ],
            unit="short",
            defaults={"min": 0},
        ),
        Panel(
            "Buffer by operation",
            "Operations a second, as our services count them. Needs no exporter.",
            [Query(f"sum by (db_operation_name) (rate(db_client_operation_duration_seconds_count{_WINDOW}))", "{{db_operation_name}}")],
            defaults={"min": 0},
        ),
    ],
)
_SCALING = Row(
    "Preemption and scaling",
    [
        Panel(
            "Pods taken away",
            "Pods that were evicted or lost with their node, and victims of pods with a higher priority. Their work is given to "
            "others. Needs"
            " kube-state-metrics, and kube-scheduler for the victims.",
            [
                Query(f'sum by (reason) (kube_pod_status_reason{{{_HERE}, reason=~"Evicted|NodeLost|Shutdown"}})', "{{reason}}"),
                Query(f"sum(increase(scheduler_preemption_victims_sum{_WINDOW}))", "preempted"),
            ],
            unit="none",
            width=6,
            defaults=_BAR,
        ),
        Panel(
            "Groups dispatched again",
            "Per second: their worker was lost, preempted or too slow. Needs no exporter.",
            [Query(f'sum(rate(gradbus_groups_dispatched_total{{gradbus_dispatch="again"}}{_WINDOW}))', "dispatched again")],
            width=6,
            defaults={"min": 0},
        ),
        Panel(
            "Groups that wait for samples",
            "What KEDA asks for: one rollout worker for each 32. The other line is the share of the time in which workers generate: "
            "near 1, more workers"
            " help. Needs no exporter.",
            [
                Query('sum(gradbus_groups_waiting{gradbus_stage="sampling"}) or vector(0)', "groups waiting"),
                Query(f'avg(rate(gradbus_run_time_seconds_total{{gradbus_phase="generate"}}{_WINDOW}))', "workers busy"),
            ],
            width=6,
            defaults={"min": 0},
        ),
        Panel(
            "Workers by KEDA",
            "Rollout workers that KEDA's HorizontalPodAutoscaler has, wants, and may have. Needs kube-state-metrics.",
            [
                Query(
                    f'sum(kube_horizontalpodautoscaler_{field}{{{_HERE}, horizontalpodautoscaler="keda-hpa-rollout"}})',
                    name,
                )
                for field, name in (
                    ("status_current_replicas", "has"),
                    ("status_desired_replicas", "wants"),
                    ("spec_max_replicas", "at most"),
                )
            ],
            unit="none",
            width=6,
            defaults=_BAR,
        ),
    ],
)
CLUSTER = Board(
    uid="gradbus-cluster",
    title="Gradbus / Cluster",
    description="Has Kubernetes given each role what it needs?",
    variables=[_NAMESPACE],
    annotations=[STARTS],
    rows=[_PODS, _RESOURCES, _NODES, _STATE, _SCALING],
)
