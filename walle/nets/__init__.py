"""Networks as pure functions of one flat parameter vector: policies, critics, normalisers."""
