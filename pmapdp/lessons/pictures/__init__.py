"""The drawings of the lessons, one file each."""
