"""What the services of Gradbus share, and what its users import."""
