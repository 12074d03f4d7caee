"""Load on the real services: everything is the product but what would need a GPU."""
