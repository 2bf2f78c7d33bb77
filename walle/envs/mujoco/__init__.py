"""Batched MuJoCo: the physics of many lanes, and observations and rewards for all of them at once."""
