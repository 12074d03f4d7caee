"""Specs: every check of a run spec before the run is stored."""
