"""Hooks of one's own that the agent calls during a run: `callbacks=[module:Name]`.

base.py      what a callback is, and what each hook receives
calling.py   makes the callbacks of a run, calls them, keeps their state
"""
