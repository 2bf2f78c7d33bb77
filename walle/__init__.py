"""walle: N sampler processes and one agent, with every second accounted for."""

__version__ = "0.2.0"
