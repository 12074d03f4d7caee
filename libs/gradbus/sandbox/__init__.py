"""Users' Python in confined processes: no environment, no network, no files but the standard library, no new processes.

`child` and what it imports need the standard library alone: they run in the confined process.
"""
