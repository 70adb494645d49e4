"""The roles of a P/S transaction: pure functions of their history."""
