"""Sinkhorn balancing of block-to-block scores."""
