"""Passes over several held contexts at once: lanes that are computed in one step and go on with the same token."""
