"""Models as folders of sentence-transformers."""
