"""The reference service: token log-probabilities under the frozen base model."""
