"""What the policy drew, as text and calls: one module for each way in which models write calls."""
