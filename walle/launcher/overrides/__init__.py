"""What the overrides of a sweep say: along which keys jobs differ, and which are one choice's own.

swept.py     the keys along which the jobs of a sweep differ
quick_loader.py  composes jobs that differ only in values from one config in common
choices.py   settings of single choices of a group, such as `ppo.clip=0.1`
"""
