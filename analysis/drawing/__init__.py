"""Draw figures in one style, beside the numbers that the papers published."""
