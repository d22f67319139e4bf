"""Client libraries, each in an environment of its own, against running servers."""
