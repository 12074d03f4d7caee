"""Subcommands about where a run's weights come from: lineage and replay."""
