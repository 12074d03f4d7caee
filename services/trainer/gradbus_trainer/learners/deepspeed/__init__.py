"""A learner on DeepSpeed: rank 0 holds the connections and sends commands, the other ranks carry them out."""
