"""For models and state that are split over devices: meshes, layouts, ZeRO, the NNX guide. Lessons 15 and 16."""
