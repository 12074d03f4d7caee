"""A model whose weights, gradients and moments DeepSpeed divides among the ranks: how it is read, trained, gathered and restored."""
