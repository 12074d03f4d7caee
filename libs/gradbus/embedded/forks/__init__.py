"""Fork servers: services are forked from processes that have imported what they share."""
