"""Episodes that agents play: offers, claims, the exchange of requests and turns."""
