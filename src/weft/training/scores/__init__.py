"""What is said of a split besides its loss: classes, numbers, ranks."""
