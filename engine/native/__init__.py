"""The CPU step in C++: one call computes a whole step. Optional; see `engine.native.library` for whether it is here."""
