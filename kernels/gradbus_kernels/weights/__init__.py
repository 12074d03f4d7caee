"""Transport of policy weights.

`digest`: the checksum of a version. `delta`: a version as its difference from the one before. `broadcast`: bytes from the trainer to
the rollout workers, also run as a script.
"""
