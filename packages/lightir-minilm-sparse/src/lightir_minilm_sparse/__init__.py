"""A data-only package: the folder `model` beside this file is a lightir model."""
