"""How worker processes begin and end: the fork server, signals, and noticing a death."""
