"""Sampling engines behind one seam."""
