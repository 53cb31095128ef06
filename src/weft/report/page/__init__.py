"""Whole reports: HTML and Markdown."""
