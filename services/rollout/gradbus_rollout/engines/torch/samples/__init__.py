"""The samples under way: `calls`, from a call to its completions; `rows`, the state of those that are decoded."""
