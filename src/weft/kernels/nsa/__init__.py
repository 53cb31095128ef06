"""Native sparse attention: compressed slots, selected blocks, gates."""
