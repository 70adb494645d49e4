"""The total order at work: the roles of `txlayer.ordering` joined to buses, logs, sockets and threads."""
