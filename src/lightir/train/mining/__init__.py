"""Hard negatives: where they are searched, and which results are kept."""
