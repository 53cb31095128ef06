"""Verbs that write: a file of your own to fill in, a page of results."""
