"""The trainer: a fold over the experience log."""
