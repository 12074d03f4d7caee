"""Mixtures of experts: the router, the experts of a layer, and the products of each with its tokens."""
