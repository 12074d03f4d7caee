"""The command `gradbus`. Nothing heavy is imported before a verb runs."""
