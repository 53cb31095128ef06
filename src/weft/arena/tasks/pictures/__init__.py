"""Tasks on pictures: your own, from a folder, a table or an npz file."""
