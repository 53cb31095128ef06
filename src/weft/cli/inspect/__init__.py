"""Verbs that show what there is: mechanisms, patterns, plans, tasks."""
