"""Convolutions with fixed or predicted weights along the sequence."""
