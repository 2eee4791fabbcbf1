"""Segments: immutable folders of memory-mapped arrays, how they are written, and how several become one."""
