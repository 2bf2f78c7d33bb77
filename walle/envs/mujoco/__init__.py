"""Batched MuJoCo: the physics of many lanes, observations and rewards for all at once."""
