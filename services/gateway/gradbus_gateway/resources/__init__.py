"""What the REST interface answers, made of what the bus, the log and the stores hold. The models are in `gradbus.resources`."""
