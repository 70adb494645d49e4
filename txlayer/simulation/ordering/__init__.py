"""The ordering layer in a world on one seed."""
