"""Train on a table, predict on files, say what a run is: `fit`, `predict`, `show`."""
