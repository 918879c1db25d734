"""One command: exact figures on the test set of a trained model."""
