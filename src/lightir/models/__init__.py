"""Language models as encoders: backbones, masks, pooling, heads, losses' building blocks, and the query-encoder export."""
