"""What the package is measured against; nothing in it imports this."""
