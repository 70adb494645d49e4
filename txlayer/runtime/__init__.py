"""The performer of effects."""
