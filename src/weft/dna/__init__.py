"""DNA: files of sequences, bases and k-mers as tokens, motifs, made-up promoters."""
