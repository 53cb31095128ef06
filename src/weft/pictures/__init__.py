"""Pictures: files in, tokens, and PNG files out."""
