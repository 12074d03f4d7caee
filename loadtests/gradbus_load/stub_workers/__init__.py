"""Many workers in one process, each with its own connections: the real loops and wires around stubs."""

from typing import Final

COUNT: Final = "GRADBUS_LOAD_WORKERS"
GROUP_SECONDS: Final = "GRADBUS_LOAD_GROUP_SECONDS"
HELD: Final = "GRADBUS_LOAD_HELD"
LEARNER: Final = "GRADBUS_LOAD_LEARNER"
