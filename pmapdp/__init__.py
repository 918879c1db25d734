"""Data-parallel training in JAX with pmap, jit, shard_map and on a single device.

The core, in the order in which to read it, in an evening:

    steps/pmap.py            one program per device, and an all-reduce by name
    steps/shared.py          a device's gradient sums, and the update
    steps/placing.py         arrays to the devices and back
    steps/single.py          one device
    steps/shard_map.py       the same program on sharded arrays
    steps/jit.py             one program for the global batch, split by the compiler
    state.py                 the train state, and the task: model, loss, optimizer
    loss.py                  loss and metrics as sums and counts
    optimizer.py             optimizers and learning-rate schedules
    models/cnn.py            a network in Flax NNX
    layers.py                exact versions of Flax's batch norm, dropout and attention
    data/dataset.py          a data set: arrays for training and testing
    data/digits.py           the data set that is built in
    data/batches.py          the order of the examples, and padding
    metrics.py               sums on the host, read without stopping the devices
    job.py                   all parts of a run: data, model, batches, step
    train.py                 the trainer: restore, loop, evaluate, save, stop
    devices.py               simulate N devices, choose, describe
    config.py                every setting of a run, in one dataclass
    errors.py                errors that you can correct, and how

Everything else is for when you need it: `run/` (long runs), `sharding/` (to split the
model or the state), `distributed.py` (several machines) and `custom/` (your model, loss
or data). `evaluate`, `export`, `predict`, `verify`, `port`, `compare` and `scaling` are
commands. `collectives.py` lists what a compiled program exchanges between devices, and
`exported_file.py` writes and reads the file of an exported model. `cli.py` starts and
ends every command, `flags.py` reads its command line, `registry.py` and `recipes.py`
define the names used there, `signals.py` lets Ctrl-C stop a run, `files.py` reads
and writes files, and `lessons/` has the lessons' pictures and checks. The core imports
none of them, except in `job.py` and `train.py`, where all parts meet.
"""

__version__ = "0.4.0"
