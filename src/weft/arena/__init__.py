"""The arena: mechanisms compared on the same work."""
