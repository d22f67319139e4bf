"""Output that must belong to a language: compiled by llguidance, enforced token by token."""
