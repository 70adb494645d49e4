"""The stories of the papers, told with sites on all three buses."""
