"""Below the API: connections that end, what is too long to be read, and a log that nobody waits for."""
