"""Worker processes: the fork server, signals, and the watch over processes that end."""
