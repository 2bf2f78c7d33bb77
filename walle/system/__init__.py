"""Operating-system services: files, locks, processes, signals, the machine."""
