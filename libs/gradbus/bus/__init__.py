"""The bus: NATS JetStream. It carries tasks, hints, control state and events, but no samples and no weights."""

from gradbus.bus.connection import Bus, BusSettings
from gradbus.bus.events import Event, EventLog, Level
from gradbus.bus.kv import Bucket, Conflict, Entry
from gradbus.bus.lease import Lease
from gradbus.bus.owned_key import OwnedKey
from gradbus.bus.subjects import Buckets
from gradbus.bus.tasks import Delivery, TaskQueue
from gradbus.bus.view import View

__all__ = [
    "Bucket",
    "Buckets",
    "Bus",
    "BusSettings",
    "Conflict",
    "Delivery",
    "Entry",
    "Event",
    "EventLog",
    "Lease",
    "Level",
    "OwnedKey",
    "TaskQueue",
    "View",
]
