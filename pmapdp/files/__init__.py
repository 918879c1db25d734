"""Files that come from outside or go there: regular files only, written whole or not at all; faults are sentences."""
