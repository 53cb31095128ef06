"""What a trained model needs to be used: labels, tokenizer, text settings; and its use."""
