"""Pure tensor functions, one per equation of the paper, without files, clocks, logs or global randomness."""
