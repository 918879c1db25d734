"""Your model, data, loss and optimizer: what makes them fit the trainer, and refuses what would break a promise."""
