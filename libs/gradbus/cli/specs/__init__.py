"""Subcommands about a spec before it is submitted."""
