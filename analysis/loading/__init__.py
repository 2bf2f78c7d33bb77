"""Find the directories of runs, and read the files in them."""
