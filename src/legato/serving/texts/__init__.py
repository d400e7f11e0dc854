"""Texts on their way from the engine to a client: their events, and what is sent of them."""
