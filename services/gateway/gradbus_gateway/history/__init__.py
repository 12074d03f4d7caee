"""The metrics of a run as columns, downsampled for whoever draws them."""
