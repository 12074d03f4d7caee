"""What the services of Gradbus share, and what its users import."""

import os

# gRPC's handlers of fork stop and start its threads on both sides. A child that is about to run another program can wait for
# them for ever; its parent waits for the child, ends as frozen, and the child keeps the parent's ports. No child of ours uses gRPC
# before it has run its program. gRPC reads this when it is first used.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
