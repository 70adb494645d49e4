"""Random transactions between sites in processes of their own, which are killed; then the simulation's checkers."""
