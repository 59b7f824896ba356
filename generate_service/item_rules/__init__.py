"""How many embeddings an item yields, family by family, found from its tensors alone."""
