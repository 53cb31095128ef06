"""Verbs that read models of other libraries, and write ours for them."""
