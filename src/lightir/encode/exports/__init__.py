"""Models for other projects: folders of sentence-transformers, repositories of the Hugging Face hub."""
