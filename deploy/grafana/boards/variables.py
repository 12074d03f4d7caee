"""Variables and annotations that dashboards share."""

from panels import Variable

ONE_RUN = Variable("run", "Run", "label_values(gradbus_run_step, gradbus_run_id)", several=False)
SERVICE = Variable("service", "Service", "label_values(gradbus_process_ready, job)")
WORKER = Variable("worker", "Worker", 'label_values(gradbus_process_ready{job=~"$service"}, instance)')
ROLLOUT = Variable("worker", "Worker", 'label_values(gradbus_weights_version{gradbus_run_id="$run"}, instance)')

OF_RUN = 'gradbus_run_id="$run"'
"""Selects the run."""
OF_SERVICES = 'job=~"$service", instance=~"$worker"'
"""Selects the processes."""

STARTS = {
    "name": "Restarts",
    "datasource": {"type": "prometheus", "uid": "prometheus"},
    "enable": True,
    # A process exports its first metrics 15 s after its imports.
    "expr": "process_uptime_seconds < 60",
    "iconColor": "orange",
    "step": "15s",
    "titleFormat": "{{instance}} started",
}
"""Marks the start of each process."""
