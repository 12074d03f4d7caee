"""Permissions: one table of roles and rights, and the configuration of NATS, the buffer and the gRPC servers made from it."""

from gradbus.access.configuration import PasswordOf, buffer_configuration, buffer_rules, buffer_users, nats_configuration
from gradbus.access.nats import Permissions, nats_permissions
from gradbus.access.table import BUFFER_USERS, CALLERS, NATS_USERS, SERVERS, callers_of, host_name

__all__ = [
    "BUFFER_USERS",
    "CALLERS",
    "NATS_USERS",
    "SERVERS",
    "PasswordOf",
    "Permissions",
    "buffer_configuration",
    "buffer_rules",
    "buffer_users",
    "callers_of",
    "host_name",
    "nats_configuration",
    "nats_permissions",
]
