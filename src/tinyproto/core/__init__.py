"""Pure tensor functions: one per equation of the paper, free of files, clocks, logs and global randomness."""
