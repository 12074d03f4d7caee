"""The process of a service: settings, signals, health pages, shutdown, and the heartbeat of workers."""

from gradbus.process.heartbeat import WorkerHeartbeat
from gradbus.process.runner import Process, read_settings, run_process
from gradbus.process.settings import ProcessSettings, named_variables
from gradbus.process.worker import RunServer, WorkerClients, run_worker, serve_worker

__all__ = [
    "Process",
    "ProcessSettings",
    "RunServer",
    "WorkerClients",
    "WorkerHeartbeat",
    "named_variables",
    "read_settings",
    "run_process",
    "run_worker",
    "serve_worker",
]
