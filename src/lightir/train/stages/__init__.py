"""The training stages, one file per stage, and what they share: data, model, development measures."""
