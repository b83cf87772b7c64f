"""What a run showed, for people: the table, and the verdict in words."""
