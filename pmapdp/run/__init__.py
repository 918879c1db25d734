"""Long runs: their folder, checkpoints, resuming, stopping, and what they show and write. Lesson 14."""
