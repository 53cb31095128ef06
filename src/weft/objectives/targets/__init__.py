"""Which tokens of a batch are predicted: orders, spans, words, and the second side of pairs."""
