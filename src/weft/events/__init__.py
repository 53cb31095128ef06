"""Events of clients over time: files in pieces, encoders, and what they make on disk."""
