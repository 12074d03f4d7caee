"""Hostile users beside a good run: submissions, clients, and the command that runs them for an hour."""
