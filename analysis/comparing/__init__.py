"""Match the runs of two sides; estimate differences, ratios, probabilities of improvement."""
