"""Tensors on their way out of a learner, one at a time, and the files that they become."""
