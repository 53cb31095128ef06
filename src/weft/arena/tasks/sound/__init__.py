"""Tasks on sound: spoken digits, and a table of your own files."""
