"""Tables that an embedding reads: by frequency, and by the columns of events."""
