"""Below the API: connections that end, and a log that nobody waits for."""
