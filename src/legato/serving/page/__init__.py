"""The page at `/` of `legato serve`."""
