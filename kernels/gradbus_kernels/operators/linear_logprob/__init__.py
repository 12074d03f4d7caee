"""Log-probabilities and entropies from hidden states and the LM head, without the `[N, V]` logits."""
