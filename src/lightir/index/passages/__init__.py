"""Passages: a document that is longer than its encoder reads is stored as several, each with its place in the text.

A passage is a document of the index: it has a row in every branch, it can be pending, and it is encoded alone. Its id
tells its document, so a search can show the best passage of each document (`lightir.index.passages.naming`).
"""
