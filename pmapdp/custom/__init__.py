"""Who brings a model, a loss or data of their own."""
