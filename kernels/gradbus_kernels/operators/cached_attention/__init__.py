"""Attention of new tokens over caches of keys and values, and what puts their own keys and values there; for inference on a GPU.

`api`: the functions. `reference`: layout of a cache, settings, and both in plain torch. `triton`.
"""
