"""What a member prepares and commits: one port, several resources."""
