"""Processes that take HTTP in front of the one that holds the models: see `fronts.py`."""
