"""The figures of a report, one file each."""
