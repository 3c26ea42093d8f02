"""attnkit search on the nodes of a Ray cluster: python -m attnkit.ray search MODEL --address ADDRESS."""
