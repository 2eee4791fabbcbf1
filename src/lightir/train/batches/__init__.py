"""Batches as tensors: each process's share, packed rows, gradient caching, vectors of queries and documents."""
