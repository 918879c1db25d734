"""Split a model or its state over devices, under jit.

    flags.py        reads --mesh, --layout and --shard-state, and fits them to a model
    layout.py       gives every array of the state and the batch its sharding
    split_step.py   makes the training step, as the files of `steps/` do

docs/meshes.md shows how to use it.
"""
