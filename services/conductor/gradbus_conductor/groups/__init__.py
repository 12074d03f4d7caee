"""Groups, from dispatch to their entry in the experience log."""
