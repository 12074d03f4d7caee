"""The trainer's end of the weight broadcast."""
