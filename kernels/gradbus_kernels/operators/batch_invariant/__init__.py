"""Batch-invariant operators: the bits of a row do not depend on the rows beside it."""
