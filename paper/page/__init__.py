"""The page on the paper: tables, figures, open readings and claims from records."""
