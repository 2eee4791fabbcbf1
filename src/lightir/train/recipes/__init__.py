"""Training recipes: their records, their YAML files, and the names of data sets."""
