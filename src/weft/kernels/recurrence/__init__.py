"""Recurrences along the sequence: scans and Triton kernels."""
