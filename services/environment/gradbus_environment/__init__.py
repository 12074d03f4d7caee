"""Users' environments: worlds in which samples are episodes of many turns."""
