"""The part of a policy loss that takes the mean of the score from it, fused with the LM head."""
