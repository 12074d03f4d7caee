"""One scenario in each module: `Settings` with the rig, and `measure(settings, bench)`."""
