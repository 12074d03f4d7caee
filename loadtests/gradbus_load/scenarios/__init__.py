"""One question a module: `Settings`, with the rig that is measured, and `measure(settings, bench)`."""
