"""Live figures of the devices of this process and of others: collected, exchanged over sockets, and exported."""
