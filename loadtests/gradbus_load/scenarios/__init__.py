"""One question a module: `Settings` with defaults, and `measure(settings, folder)`."""
