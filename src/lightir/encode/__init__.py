"""Documents to vectors and vocabularies to query tables."""
