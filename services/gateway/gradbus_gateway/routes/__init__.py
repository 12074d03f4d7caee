"""One router per resource, and what their handlers share: authentication and dependencies."""
