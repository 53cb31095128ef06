"""Early exit: answers from before the last layer."""
