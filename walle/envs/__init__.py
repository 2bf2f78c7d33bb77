"""Lanes: batches of environments that step together inside one sampler."""
