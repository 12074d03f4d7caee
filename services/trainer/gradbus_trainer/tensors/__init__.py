"""From a learner's tensors, read one at a time, to files."""
