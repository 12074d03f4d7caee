"""The policy loss of GRPO and its variants, and the same fused with the LM head."""
