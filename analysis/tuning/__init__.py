"""The report of a search for settings: its journal, its figures, its page."""
