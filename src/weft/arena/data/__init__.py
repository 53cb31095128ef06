"""Data of tasks: examples, caches on disk, random draws, files."""
