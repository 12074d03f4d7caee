"""The memory that a process holds: what its allocator keeps, what is returned to the system, and what is code."""
