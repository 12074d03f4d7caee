"""Replays: a run trained again from its archive, with object storage alone, and compared with what was recorded."""
