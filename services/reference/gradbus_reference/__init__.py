"""The reference service: log-probabilities and scores under frozen models of runs."""
