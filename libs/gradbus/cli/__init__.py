"""The command `gradbus`. Heavy modules are imported only when a subcommand needs them."""
