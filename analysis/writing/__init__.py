"""Give every script its command line; write its figure, its numbers, its sentences, its page."""
