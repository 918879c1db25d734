"""Whole programs that lessons run."""
