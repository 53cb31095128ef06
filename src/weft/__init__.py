"""weft: every efficient-transformer idea behind one interface."""
