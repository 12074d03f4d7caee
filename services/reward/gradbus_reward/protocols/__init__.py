"""Reward servers of other frameworks: what each is asked, and how its answer is read."""
