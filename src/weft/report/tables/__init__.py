"""Tables from rows."""
