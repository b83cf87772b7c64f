"""The paper, repeated: its tables and figures from records, its open readings, and its claims with verdicts."""
