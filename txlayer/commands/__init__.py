"""The commands of `txlayer`, one module each: `add(commands)` registers it."""
