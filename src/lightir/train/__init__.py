"""The training room: recipes, the contrastive stage, checkpoints and hard negatives."""
