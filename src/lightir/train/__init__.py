"""Training: one file a stage, the loop that runs them, recipes, teachers, hard negatives and fitted query tables."""
