"""Result files, read and summarised."""
