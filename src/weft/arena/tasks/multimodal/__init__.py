"""Tasks of several modalities at once."""
