"""The frame of every service process: settings, signals, health, the end."""

from gradbus.process.frame import Process, run_process
from gradbus.process.settings import ProcessSettings
from gradbus.process.station import Station
from gradbus.process.worker import RunServer, WorkerWires, run_worker

__all__ = ["Process", "ProcessSettings", "RunServer", "Station", "WorkerWires", "run_process", "run_worker"]
