"""Encoding of documents by a model, which torch or ONNX Runtime runs."""
