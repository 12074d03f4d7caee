"""Subcommands about where a run's weights come from: lineage, fork and replay."""
