"""The HTTP API and the page over a recommender."""
