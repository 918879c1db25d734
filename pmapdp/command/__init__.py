"""How a command starts, reads its flags, speaks and ends."""
