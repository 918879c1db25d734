"""For runs that take long: workdir, checkpoints, resuming, stopping, log, screen, TensorBoard, profile. Lesson 14."""
