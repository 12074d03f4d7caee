"""Resources servers of NeMo Gym."""
