"""Seconds to 99 % on MNIST, for docs/speedrun.md."""
