"""The divergence of a policy from a teacher over the teacher's most likely tokens, from hidden states and the LM head."""
