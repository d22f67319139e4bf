"""Batches: many requests from a file, made when nobody is in a hurry, their answers written to another file."""
