"""Drawing: scales, axes and small pictures as SVG text that takes its colours from a stylesheet."""
