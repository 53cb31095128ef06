"""Comparisons: a grid of trainings, each in a process of its own."""
