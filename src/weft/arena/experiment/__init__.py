"""One training: its settings, its model and its run."""
