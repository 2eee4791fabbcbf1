"""Query tables fitted to a frozen bi-encoder, the teacher."""
