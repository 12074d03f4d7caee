"""Commands in sandboxes: one command, such as a program that the policy wrote, in namespaces of its own with files of its own.

All modules but `run` need the standard library alone. The service starts `launch` for each command; that makes the namespaces, or lets
bubblewrap make them, and in them `supervisor`, or `server`, is process 1, which starts the command, keeps its limits, and
says what came of it when no other process is left.
"""
