"""What a server serves, read in its own process or in the replicas that Ray starts."""
