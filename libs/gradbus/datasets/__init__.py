"""Datasets: what a user gives (JSON Lines, Parquet) becomes one file of rows, of which services read single rows."""
