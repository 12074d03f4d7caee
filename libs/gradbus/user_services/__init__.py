"""Calls of services that users run themselves: checked addresses, bounded responses."""
