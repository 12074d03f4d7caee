"""What the services share on top of torch: operators, models, and how weights travel."""
