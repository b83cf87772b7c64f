"""The results of runs for people: tables, a verdict in words, figures and the report page."""
