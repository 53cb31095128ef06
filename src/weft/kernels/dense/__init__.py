"""Dense attention: the equation, and torch's own kernels for it."""
