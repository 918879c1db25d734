"""The checks of the exercises, one file a lesson."""
