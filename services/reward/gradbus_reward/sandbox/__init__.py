"""Users' Python in confined processes: no environment, no network, no files but the standard library, no new processes."""
