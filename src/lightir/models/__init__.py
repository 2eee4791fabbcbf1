"""Language models as encoders: backbones, masks, pooling, heads and the losses' building blocks."""
