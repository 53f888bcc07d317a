"""Text in, batches out: tokenizing a folder, the dataset's files, and the order in which sequences are trained on."""
