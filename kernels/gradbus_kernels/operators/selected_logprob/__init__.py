"""Log-probabilities of given tokens under given logits."""
