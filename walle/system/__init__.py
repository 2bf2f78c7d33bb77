"""What the operating system does for us: files, locks, processes, signals, the machine."""
