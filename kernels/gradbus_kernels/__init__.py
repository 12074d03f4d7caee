"""Computation on tensors that services share: operators, models and the transport of weights."""
