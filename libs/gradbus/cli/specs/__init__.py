"""Subcommands that plan: data and memory before a run is submitted, and workers while it runs."""
