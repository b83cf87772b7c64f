"""Measure the package: speed, scale, reliability and accuracy studies. Nothing in `src` imports this."""
