"""Users' Python in processes of its own: no environment, no network, no files but the standard library, no new processes."""
