"""GRPO on DeepSpeed: rank 0 holds the wires and leads, the other ranks do what it tells them."""
