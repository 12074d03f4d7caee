"""The frame of every service process: settings, signals, health, the end."""

from gradbus.process.frame import Process, run_process
from gradbus.process.heartbeat import WorkerHeartbeat
from gradbus.process.settings import ProcessSettings
from gradbus.process.worker import RunServer, WorkerClients, run_worker

__all__ = ["Process", "ProcessSettings", "RunServer", "WorkerClients", "WorkerHeartbeat", "run_process", "run_worker"]
