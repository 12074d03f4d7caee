"""Generated from `proto/gradbus/v1`; `make proto` writes this folder, except for this file."""
