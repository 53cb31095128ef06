"""Tasks on DNA: your own sequences, promoters from files, and long made-up promoters."""
