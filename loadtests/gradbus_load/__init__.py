"""Load tests on the real services; only the parts that would need a GPU are stubs."""
