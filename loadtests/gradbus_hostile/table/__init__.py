"""The table of hostile submissions: what each sends, and how it must end."""
