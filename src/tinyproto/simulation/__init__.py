"""A whole federation in one process, through the same engine and the same bytes as a real one."""
