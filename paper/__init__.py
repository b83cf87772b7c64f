"""The paper's experiments: which configs its tables and figures are made of."""
