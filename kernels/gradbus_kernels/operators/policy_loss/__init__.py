"""The policy loss of GRPO and its kin, and the same fused with the LM head."""
