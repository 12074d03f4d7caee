"""Sampling engines behind one Protocol, `base.Engine`; `registry` opens the engine that a spec names."""
