"""Event streams: the events of a run are read and encoded once for all of its followers."""
