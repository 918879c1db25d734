"""Split a model or its state over devices: meshes, layouts and ZeRO under jit."""
