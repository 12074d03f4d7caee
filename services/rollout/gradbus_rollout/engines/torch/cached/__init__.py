"""Attention of the embedded engine on a GPU, by operators that read positions there.

cache      keys and values by row          attention  `Attention` over them
"""
