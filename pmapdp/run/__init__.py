"""Save, resume, stop and log long runs, each in its own folder.

Lesson 14 teaches these files.
"""
