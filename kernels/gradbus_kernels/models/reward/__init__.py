"""Reward models: a decoder and a head that scores a sequence."""
