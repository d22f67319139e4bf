"""The page for people who run the server: what it does now, and a playground for programs."""
